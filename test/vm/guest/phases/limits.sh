# Limits and what is in use: below it only by force and with the number; changed from outside they come back. It comes
# after product, needs no job of it, and leaves its spec in force.
# checks: below_use_is_refused below_use_by_force drift_is_mended in_use_is_not_mended spec_back

. /opt/lab/guest/product.sh

guests=$state/guests.yaml
slice=$cgroot/gpushare.slice/gpushare-guests.slice
with_guests() { # with_guests MEMORY TASKS writes the lab's spec with one more tenant
	cat "$spec"
	printf '  - name: guests\n    members: {users: [carol]}\n    memory: {max: %s}\n    tasks: %s\n    grants: [{name: big, exclusive: 1}]\n' "$1" "$2"
}
# A shell that keeps some memory and waits for another process: when it says so, both are there.
start_keeper() {
	rm -f /run/lab/guests.out # What the one before said is not said by this one.
	exec_as carol gpushare run -t guests --grant big -- bash -c 'printf -v x %030000000d 0; sleep 3000 & echo kept; wait; echo ${#x}' >/run/lab/guests.out 2>&1 </dev/null &
	echo $! >"$state/job-guests-big"
	disown
	until_true 60 grep -qs '^kept' /run/lab/guests.out
}
ooms() { sed -n 's/^oom_kill //p' "$slice/memory.events"; }

check_below_use_is_refused() {
	with_guests 200MiB 100 >"$guests"
	gpushare apply -f "$guests"
	start_keeper
	local code=0 out was before
	was=$(field .node.generation)
	before=$(ooms)
	out=$(with_guests 16MiB 100 | gpushare apply -f - 2>&1) || code=$?
	note "$out"
	want "the exit code of an apply below use" "$code" 5
	[[ $out == *"MiB of memory are in use"* && $out == *--force* ]] || die "it does not say how much is in use: $out"
	want "the generation" "$(field .node.generation)" "$was"
	want "memory.max" "$(cat "$slice/memory.max")" $((200 << 20))
	want "processes killed for want of memory" "$(ooms)" "$before"
	[ -d "/proc/$(job guests big)" ] || die "the job is gone"
	code=0
	out=$(with_guests 200MiB 1 | gpushare apply -f - 2>&1) || code=$?
	want "the exit code of fewer tasks than run" "$code" 5
	[[ $out == *"tasks run"* ]] || die "it does not say how many tasks run: $out"
}

leases() { field '[.leases[] | select(.tenant == "guests")] | length'; }
no_lease() { [ "$(leases)" = 0 ]; }

# The number that was shown is what it costs: the kernel ends the job. Had it ended the shell alone, the sleep would hold
# the lease.
check_below_use_by_force() {
	want "memory.oom.group" "$(cat "$cgroot$(unit_of "$(job guests big)")/memory.oom.group")" 1
	with_guests 16MiB 100 | gpushare apply -f - --force
	want "memory.max" "$(cat "$slice/memory.max")" $((16 << 20))
	until_true 20 gone "$(job guests big)"
	until_true 20 no_lease
	want "why the lease ended" "$(gpushare lease list --all --json | gojq -r '[.leases[] | select(.tenant == "guests") | .reason] | last')" "the kernel killed it: out of memory"
	gpushare apply -f "$guests"
	want "memory.max" "$(cat "$slice/memory.max")" $((200 << 20))
}

# What somebody changes from outside is put right within one look, and told once.
check_drift_is_mended() {
	listen >/run/lab/drift.events 2>&1 &
	local listener=$! writes
	until_true 30 grep -q '^HTTP/1.1 200' /run/lab/drift.events
	systemctl set-property gpushare-guests.slice TasksMax=50
	want "pids.max" "$(cat "$slice/pids.max")" 50
	gpushare config reload
	want "pids.max" "$(cat "$slice/pids.max")" 100
	writes=$(counters)
	gpushare config reload
	gpushare config reload
	want "steps done after it was mended" "$(counters)" "$writes"
	until_true 5 grep -q drift.corrected /run/lab/drift.events
	kill $listener
	note "$(grep drift.corrected /run/lab/drift.events)"
	want "times that it was told" "$(grep -c drift.corrected /run/lab/drift.events)" 1
	gpushare doctor >/run/lab/doctor.out || true # It warns.
	grep -q 'tasks 100 → 50' /run/lab/doctor.out || die "doctor does not remember what was found: $(cat /run/lab/doctor.out)"
}
# listen is gpushare events, but it shows the head of the answer too: from there on no event is missed.
listen() {
	exec perl -MSocket -e 'my $s; socket($s, PF_UNIX, SOCK_STREAM, 0) && connect($s, pack_sockaddr_un("/run/gpushare/gpushare.sock")) or die "cannot connect: $!";
		syswrite($s, "GET /v1/events HTTP/1.1\r\nHost: gpushare\r\n\r\n");
		while (sysread($s, my $text, 65536)) { syswrite(STDOUT, $text) }'
}
counters() {
	journalctl --sync # What was said before is in it.
	journalctl -b -u gpushared.service --no-pager -o cat | grep -c "step done" || true
}

# What was raised from outside and is in use is not taken away by itself: it is reported.
check_in_use_is_not_mended() {
	start_keeper
	local tasks out
	tasks=$(cat "$slice/pids.current")
	[ "$tasks" -ge 2 ] || die "only $tasks tasks run"
	with_guests 200MiB 1 | gpushare apply -f - --force
	systemctl set-property gpushare-guests.slice TasksMax=77
	gpushare config reload
	want "pids.max" "$(cat "$slice/pids.max")" 77
	out=$(gpushare status)
	[[ $out == *"tasks 77 → 1"* ]] || die "status does not tell that it differs: $out"
}

check_spec_back() {
	gpushare apply -f "$spec" --force
	until_true 20 gone "$(job guests big)"
	[ ! -d "$slice" ] || die "the slice is left"
	want "its drop-ins" "$(find /etc/systemd/system.control /run/systemd/system.control -name '*guests*' 2>/dev/null)" ""
}
