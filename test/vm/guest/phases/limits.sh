# A limit is lowered below use only with --force, and the refusal gives the amount. A limit that is changed from outside is
# corrected. The phase comes after product, needs no job of it, and leaves its spec in force.
# checks: below_use_is_refused below_use_by_force drift_is_corrected in_use_is_reported spec_back

. /opt/lab/guest/product.sh

extended=$state/extended.yaml
slice=$cgroot/gpushare.slice/gpushare-extra.slice
with_extra() { # with_extra MEMORY TASKS writes the lab's spec with one more tenant
	cat "$spec"
	printf '  - name: extra\n    members: {users: [carol]}\n    memory: {max: %s}\n    tasks: %s\n    grants: [{name: big, exclusive: 1}]\n' "$1" "$2"
}
# A shell that uses some memory and waits for another process. It prints a line when both run.
start_member() {
	rm -f /run/lab/extra.out # So that no output of an earlier job is read.
	exec_as carol gpushare run -t extra --grant big -- bash -c 'printf -v x %030000000d 0; sleep 3000 & echo ready; wait; echo ${#x}' >/run/lab/extra.out 2>&1 </dev/null &
	echo $! >"$state/job-extra-big"
	disown
	until_true 60 grep -qs '^ready' /run/lab/extra.out
}
ooms() { sed -n 's/^oom_kill //p' "$slice/memory.events"; }

check_below_use_is_refused() {
	with_extra 200MiB 100 >"$extended"
	gpushare apply -f "$extended"
	start_member
	local code=0 out was before
	was=$(field .node.generation)
	before=$(ooms)
	out=$(with_extra 16MiB 100 | gpushare apply -f - 2>&1) || code=$?
	note "$out"
	want "the exit code of an apply below use" "$code" 5
	[[ $out == *"MiB of memory are in use"* && $out == *--force* ]] || die "it does not say how much is in use: $out"
	want "the generation" "$(field .node.generation)" "$was"
	want "memory.max" "$(cat "$slice/memory.max")" $((200 << 20))
	want "processes killed by the OOM killer" "$(ooms)" "$before"
	[ -d "/proc/$(job extra big)" ] || die "the job has ended"
	code=0
	out=$(with_extra 200MiB 1 | gpushare apply -f - 2>&1) || code=$?
	want "the exit code of fewer tasks than run" "$code" 5
	[[ $out == *"tasks run"* ]] || die "it does not say how many tasks run: $out"
}

leases() { field '[.leases[] | select(.tenant == "extra")] | length'; }
no_lease() { [ "$(leases)" = 0 ]; }

# The kernel kills the whole job. With only the shell killed, the sleep would keep the lease.
check_below_use_by_force() {
	want "memory.oom.group" "$(cat "$cgroot$(unit_of "$(job extra big)")/memory.oom.group")" 1
	with_extra 16MiB 100 | gpushare apply -f - --force
	want "memory.max" "$(cat "$slice/memory.max")" $((16 << 20))
	until_true 20 ended "$(job extra big)"
	until_true 20 no_lease
	want "why the lease ended" "$(gpushare lease list --all --json | gojq -r '[.leases[] | select(.tenant == "extra") | .reason] | last')" "the kernel killed it: out of memory"
	gpushare apply -f "$extended"
	want "memory.max" "$(cat "$slice/memory.max")" $((200 << 20))
}

# A limit that is changed from outside is corrected by one converge and reported once.
check_drift_is_corrected() {
	listen >/run/lab/drift.events 2>&1 &
	local listener=$! writes
	until_true 30 grep -q '^HTTP/1.1 200' /run/lab/drift.events
	systemctl set-property gpushare-extra.slice TasksMax=50
	want "pids.max" "$(cat "$slice/pids.max")" 50
	gpushare config reload
	want "pids.max" "$(cat "$slice/pids.max")" 100
	writes=$(counters)
	gpushare config reload
	gpushare config reload
	want "steps after the correction" "$(counters)" "$writes"
	until_true 5 grep -q drift.corrected /run/lab/drift.events
	kill $listener
	note "$(grep drift.corrected /run/lab/drift.events)"
	want "events" "$(grep -c drift.corrected /run/lab/drift.events)" 1
	gpushare doctor >/run/lab/doctor.out || true # It warns.
	grep -q 'tasks 100 → 50' /run/lab/doctor.out || die "doctor does not report the correction: $(cat /run/lab/doctor.out)"
}
# listen is gpushare events, but it shows the head of the answer too: from there on no event is missed.
listen() {
	exec perl -MSocket -e 'my $s; socket($s, PF_UNIX, SOCK_STREAM, 0) && connect($s, pack_sockaddr_un("/run/gpushare/gpushare.sock")) or die "cannot connect: $!";
		syswrite($s, "GET /v1/events HTTP/1.1\r\nHost: gpushare\r\n\r\n");
		while (sysread($s, my $text, 65536)) { syswrite(STDOUT, $text) }'
}
counters() {
	journalctl --sync # So that earlier messages are in the journal.
	journalctl -b -u gpushared.service --no-pager -o cat | grep -c "step done" || true
}

# A limit that was raised from outside and is in use is not lowered without --force. It is reported.
check_in_use_is_reported() {
	start_member
	local tasks out
	tasks=$(cat "$slice/pids.current")
	[ "$tasks" -ge 2 ] || die "only $tasks tasks run"
	with_extra 200MiB 1 | gpushare apply -f - --force
	systemctl set-property gpushare-extra.slice TasksMax=77
	gpushare config reload
	want "pids.max" "$(cat "$slice/pids.max")" 77
	out=$(gpushare status)
	[[ $out == *"tasks 77 → 1"* ]] || die "status does not report the difference: $out"
}

check_spec_back() {
	gpushare apply -f "$spec" --force
	until_true 20 ended "$(job extra big)"
	[ ! -d "$slice" ] || die "the slice is left"
	want "its drop-ins" "$(find /etc/systemd/system.control /run/systemd/system.control -name '*extra*' 2>/dev/null)" ""
}
