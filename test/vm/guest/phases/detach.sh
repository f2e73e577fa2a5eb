# A detached lease: a service with the device rules of its grant, which outlives the login that started it and the daemon.
# checks: starts isolation outlives_login outlives_daemon logs readers stop

. /opt/lab/guest/product.sh

id() { cat "$state/detached"; }
main() { field ".leases[] | select(.id == \"$(id)\") | .pid"; }

check_starts() {
	login alice "gpushare run --detach -q -t vision --grant dev -- bash -c 'trap \"echo ending; exit 0\" TERM; echo hello from \$GPUSHARE_LEASE; while :; do sleep 1 & wait; done'" \
		>"$state/detached" 2>/run/lab/detached.err || die "$(cat /run/lab/detached.err)"
	note "lease $(id), process $(main), in $(unit_of "$(main)")"
	want "its origin" "$(field ".leases[] | select(.id == \"$(id)\") | .origin")" detached
	want "its user" "$(ps -o user= -p "$(main)")" alice
	[[ $(unit_of "$(main)") == /gpushare.slice/gpushare-vision.slice/gpushare-vision-dev.slice/* ]] || die "it runs in $(unit_of "$(main)")"
}

check_isolation() {
	want "what it can open" "$(opens_in "$(unit_of "$(main)")" $root/dev/nvidia{0,1,2,3} | xargs)" "denied through denied denied"
	systemctl daemon-reload
	want "what it can open after a reload" "$(opens_in "$(unit_of "$(main)")" $root/dev/nvidia{0,1,2,3} | xargs)" "denied through denied denied"
}

check_outlives_login() {
	local before
	before=$(main)
	loginctl terminate-user alice 2>/dev/null || true
	until_true 60 test ! -d "$cgroot/user.slice/user-2001.slice"
	want "its process" "$(main)" "$before"
	[ -d "/proc/$before" ] || die "it ended with the login"
}

check_outlives_daemon() {
	local before
	before=$(main)
	kill -KILL "$(property gpushared.service MainPID)"
	until_true 60 answers
	want "its process" "$(main)" "$before"
	[ -d "/proc/$before" ] || die "it ended with the daemon"
}

check_logs() {
	want "what it printed" "$(as alice gpushare lease logs "$(id)" | grep -c "^hello from $(id)$")" 1
	local out code=0
	out=$(as bob gpushare lease logs "$(id)" 2>&1) || code=$?
	[ "$code" != 0 ] || die "bob can read the output of alice's job: $out"
}

daemon_cgroup=$cgroot/gpushared.slice/gpushared.service
journal_readers() { xargs -r ps -o comm= -p <<<"$(paste -sd, "$daemon_cgroup/cgroup.procs")" | grep -c '^journalctl$' || true; }
journal_readers_are() { [ "$(journal_readers)" = "$1" ]; }
memory_of_daemon() { cat "$daemon_cgroup/memory.current"; }

# Eight readers of one lease share one process that reads the journal. With as many readers of as many leases as the daemon
# allows it stays within its memory limit.
check_readers() {
	local readers=() leases=() idle one five each lease limit
	idle=$(memory_of_daemon)
	for _ in {1..8}; do
		exec_as alice gpushare lease logs -f "$(id)" >/dev/null &
		readers+=($!)
	done
	until_true 60 journal_readers_are 1
	for _ in {1..4}; do
		lease=$(as alice gpushare run --detach -q -t vision --grant dev -- sleep 600)
		leases+=("$lease")
	done
	one=$(memory_of_daemon)
	for lease in "${leases[@]}"; do
		as bob gpushare lease logs -f "$lease" >/dev/null 2>&1 && die "bob can follow the output of alice's job"
		gpushare lease logs -f "$lease" >/dev/null &
		readers+=($!)
	done
	until_true 60 journal_readers_are 5
	five=$(memory_of_daemon)
	kill "${readers[@]}"
	until_true 60 journal_readers_are 0
	for lease in "${leases[@]}"; do
		as alice gpushare lease stop "$lease"
	done
	each=$(((five - one) / 4))
	limit=$(property gpushared.service MemoryMax)
	note "memory of the daemon: $((idle >> 10)) KiB, with 8 readers of one lease $((one >> 10)) KiB, with readers of 4 more leases $((five >> 10)) KiB"
	[ "$((one + 63 * each))" -lt "$limit" ] || die "with 64 readers it needs $((one + 63 * each)) bytes, its limit is $limit"
}

check_stop() {
	local before
	before=$(main)
	as alice gpushare lease stop "$(id)"
	until_true 30 ended "$before"
	want "what it said at its end" "$(as alice gpushare lease logs "$(id)" | grep -c '^ending$')" 1
}
