# The record of the leases is lost while the daemon does not run. Scopes and services of leases are found again; their places are
# granted to no lease before they end, and then they are. Afterwards the record is put back: the leases of other phases go on.
# checks: lost not_granted_twice ends stopping record_back

. /opt/lab/guest/product.sh

record=/run/gpushare/leases.json
kept=/run/lab/leases.json

ids() { field '[.leases[].id] | sort | join(" ")'; }
unknown() { field '[.node.conditions[]? | select(.kind == "unknown-lease") | .message] | join("; ")'; }
whole() { cat "$state/lost-whole"; } # a lease of an exclusive GPU, which is a service; the leases of the phase product are scopes

check_lost() {
	local id
	as alice gpushare run -q --detach --wait=2m -t vision --grant big -- sleep 4321 >"$state/lost-whole"
	until_true 30 whole_runs
	ids >"$state/lost-ids"
	systemctl stop gpushared.service
	cp "$record" $kept
	rm -f "$record"*
	systemctl start gpushared.service
	until_true 60 answers
	want "leases that are known" "$(ids)" ""
	for id in $(cat "$state/lost-ids"); do
		[[ $(unknown) == *"lease $id runs, and its record was lost: GPU "* ]] || die "no condition names lease $id: $(unknown)"
	done
	[[ $(unknown) == *"lease $(whole) runs, and its record was lost: GPU 2 take"* ]] || die "the conditions are: $(unknown)"
	note "$(wc -w <"$state/lost-ids") leases were found again"
}
whole_runs() { [ -n "$(pgrep -xf 'sleep 4321')" ]; }

check_not_granted_twice() {
	local place user tenant grant out code
	for place in "alice vision big" "alice vision train" "alice vision dev" "bob speech dev" "bob speech serve"; do
		read -r user tenant grant <<<"$place"
		code=0
		out=$(as "$user" gpushare run -q -t "$tenant" --grant "$grant" -- true 2>&1) || code=$?
		want "the exit code of a lease of $tenant/$grant" "$code" 125
		[[ $out == *"record was lost"* ]] || die "$tenant/$grant: it was refused for another reason: $out"
	done
	whole_runs || die "the lease without a record has ended"
	[ -d "/proc/$(job speech serve)" ] || die "a lease without a record has ended"
}

check_ends() {
	gpushare lease stop "$(whole)"
	until_true 30 whole_ended
	[[ $(unknown) != *"$(whole)"* ]] || die "its condition is left: $(unknown)"
	until_true 60 whole_is_free
	[[ $(as alice gpushare run -q -t vision --grant train -- true 2>&1) == *"record was lost"* ]] || die "a GPU is open whose lease runs"
}
whole_ended() { ! whole_runs; }
whole_is_free() { as alice gpushare run -q -t vision --grant big -- true; }

# The record is lost while systemd stops the unit of a lease, whose process ignores SIGTERM: the GPU is open when it has ended, and not
# before.
check_stopping() {
	local id unit pid refused=0 code out deadline
	id=$(as alice gpushare run -q --detach --wait=2m -t vision --grant big -- bash -c 'trap "" TERM; exec sleep 4322')
	until_true 30 pgrep -xf 'sleep 4322' >/dev/null
	pid=$(pgrep -xf 'sleep 4322')
	unit=$(ps -o unit= -p "$pid" | xargs)
	systemctl stop gpushared.service
	rm -f "$record"*
	systemctl stop --no-block "$unit"
	systemctl start gpushared.service
	until_true 60 answers
	deadline=$((SECONDS + 60)) # systemd kills the process 10 s after it asked.
	while code=0 && out=$(as alice gpushare run -q -t vision --grant big -- true 2>&1) || code=$?; [ "$code" != 0 ]; do
		want "the exit code of a run meanwhile" "$code" 125
		refused=$((refused + 1))
		[ "$SECONDS" -lt "$deadline" ] || die "it is not granted after $refused runs: $out"
	done
	[ ! -d "/proc/$pid" ] || die "the GPU of lease $id is granted while its process $pid runs"
	note "$refused runs were refused while $unit was $(property "$unit" ActiveState)"
	[ "$refused" -gt 0 ] || die "lease $id had ended before the first run"
}

check_record_back() {
	systemctl stop gpushared.service
	cp $kept "$record"
	systemctl start gpushared.service
	until_true 60 answers
	want "the conditions" "$(unknown)" ""
	want "the leases" "$(ids)" "$(tr ' ' '\n' <"$state/lost-ids" | grep -vxF "$(whole)" | xargs)"
}
