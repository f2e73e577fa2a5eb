# What a tenant, a caller without a role and a removed member cannot do to the daemon and to others on systemd: hostile processes, rights that
# ended, file systems that never answer, outputs that are kept, and the process that reads requests.
# checks: hostile removed_waiting removed_running silent_lease silent_program removed_group outputs login_uid front clients passed worker as_before
# seconds: 300

. /opt/lab/guest/product.sh

attacker=/opt/lab/attacker/attacker
# The clients of test/hostile that run here: "process" or "socket", the name, how much of it, and who does it.
clients=$("$attacker" list)
# hostile NAME N UID is the environment in which the program is one.
hostile() { echo "GPUSHARE_TEST_HOSTILE=$1 $2 $3 /run/gpushare/gpushare.sock"; }

# begin USER FILE SAYS COMMAND... runs in the background until it is killed, with its output in a file. It waits for what it says, and
# leaves its process id in $pid.
begin() {
	local user=$1 file=/run/lab/$2 says=$3
	rm -f "$file" # So that no output of an earlier one is read.
	exec_as "$user" "${@:4}" >"$file" 2>&1 </dev/null &
	pid=$!
	disown
	until_true 60 says "$pid" "$file" "$says"
}
says() { # says PID FILE TEXT
	grep -qs "^$3" "$2" && return
	ended "$1" && die "it ended: $(cat "$2")"
	return 1
}
lease_with() { field ".leases[] | select(.pid == $1) | .id"; }
running_is() { [ "$(field "[.leases[] | select(.id == \"$1\")] | length")" = "$2" ]; }
# The result of a lease that has ended, "" before.
result_of() { gpushare lease list --all --json | gojq -r ".leases[] | select(.id == \"$1\" and .state == \"ended\") | .exit_code"; }
has_result() { [ "$(result_of "$1")" = "$2" ]; }

# Processes of a member and of a caller without a role have files in /proc that are as long and as slow as they can make them. The daemon
# starts next to them, and a member attaches them.
check_hostile() {
	local kind name n program limit before cg out id began peak
	local -A pids
	while read -r kind name n _; do
		[ "$kind" = process ] || continue
		begin alice "hostile.$name" ready env "$(hostile "$name" "$n" 2001)" "$attacker"
		pids[$name]=$pid
	done <<<"$clients"
	begin carol hostile.outside ready env "$(hostile memory 536870912 2003)" "$attacker"
	pids[outside]=$pid
	want "the length of the command line" "$(head -c 1M "/proc/${pids[memory]}/cmdline" | wc -c)" $((1 << 20))
	# With a new cgroup, its largest memory is that from here on.
	systemctl restart gpushared.service
	until_true 60 answers
	before=$(property gpushared.service MainPID)
	for program in "${!pids[@]}"; do
		[ "$program" != outside ] || continue
		began=$(uptime_ms)
		out=$(as alice timeout 60 gpushare lease attach --pid "${pids[$program]}" -t vision --grant dev 2>&1) || die "attach of $program: $out"
		note "attach of a process with much $program: $(($(uptime_ms) - began)) ms"
		id=$(lease_with "${pids[$program]}")
		[ -n "$id" ] || die "no lease has it: $out"
		if [ "$program" = memory ]; then
			out=$(field ".leases[] | select(.id == \"$id\") | .command | join(\"\")")
			[[ $out == hostile=yes* ]] || die "its command is ${out:0:40}"
			[ ${#out} -le 8192 ] || die "its command has ${#out} bytes"
		fi
		gpushare lease release "$id"
	done
	kill -KILL "${pids[@]}"
	cg=$cgroot$(cgroup_of gpushared.service)
	limit=$(property gpushared.service MemoryMax)
	peak=$(cat "$cg/memory.peak")
	note "the daemon had at most $((peak >> 20)) MiB, its limit is $((limit >> 20)) MiB"
	[ "$peak" -lt $((limit / 2)) ] || die "the daemon had $peak bytes, its limit is $limit"
	want "what was killed because memory ran out" "$(sed -n 's/^oom_kill //p' "$cg/memory.events")" 0
	want "restarts of the daemon" "$(property gpushared.service NRestarts)" 0
	want "the daemon" "$(property gpushared.service MainPID)" "$before"
}

# members "USER..." [LINE [OPTION...]] applies the spec with these members of vision, and with those of the group club.
members() {
	awk -v users="$1" -v line="${2:-}" '
		/^  - name: / { vision = $3 == "vision" }
		vision && /^    members:/ { print "    members: {users: [" users "], groups: [lab-club]}"; if (line != "") print "    " line; next }
		{ print }' "$accepted" >/run/lab/members.yaml
	gpushare apply -f /run/lab/members.yaml "${@:3}" >/run/lab/members.out 2>&1
}
must_members() { members "$@" || die "the spec is refused: $(cat /run/lab/members.out)"; }
leaves_club() { # leaves_club USER; the processes of the user keep the group
	gpasswd -d "$1" lab-club >/dev/null
	gpushare config reload
}
# waits USER FILE OPTION... requests the GPU that alice has.
waits() {
	rm -f "/run/lab/$2.code"
	{
		code=0
		as "$1" gpushare run -t vision --grant big --wait "${@:3}" -- touch /tmp/placed >"/run/lab/$2.out" 2>&1 </dev/null || code=$?
		echo "$code" >"/run/lab/$2.code"
	} &
	disown
}
waiting_are() { [ "$(field '[.leases[] | select(.state == "queued")] | length')" = "$1" ]; }
want_denied() { # want_denied USER FILE: the request has ended, because its user is no member
	until_true 60 test -s "/run/lab/$2.code"
	[ "$(cat "/run/lab/$2.code")" != 0 ] || die "the request of $1 got a GPU: $(cat "/run/lab/$2.out")"
	grep -q "$1 is not a member of tenant vision any more" "/run/lab/$2.out" || die "the request of $1 ended with: $(cat "/run/lab/$2.out")"
	note "exit code $(cat "/run/lab/$2.code"): $(tail -n 2 "/run/lab/$2.out")"
}
detached() { as "$1" gpushare run --detach -q -t vision --grant dev -- sleep 600; }

# Carol is a member by name, bob by a group. Both are removed while they wait for a GPU, plain and detached: no request gets it. With
# on_removal: continue, the default, leases that run go on, and their users stop them.
check_removed_waiting() {
	local big carols bobs out
	groupadd lab-club
	gpasswd -a bob lab-club >/dev/null
	must_members "alice, carol"
	begin alice big.out ready gpushare run -q -t vision --grant big -- bash -c 'echo ready; exec sleep 600'
	big=$(lease_with "$pid")
	carols=$(detached carol)
	bobs=$(detached bob)
	rm -f /tmp/placed
	waits carol carol-plain
	waits carol carol-detached --detach
	waits bob bob-plain
	waits bob bob-detached --detach
	until_true 60 waiting_are 4
	must_members alice
	want_denied carol carol-plain
	want_denied carol carol-detached
	waiting_are 2 || die "those who are still members do not wait: $(field '[.leases[] | select(.state == "queued") | .user] | join(" ")')"
	leaves_club bob
	want_denied bob bob-plain
	want_denied bob bob-detached
	as alice gpushare lease stop "$big"
	as alice gpushare run -q -t vision --grant big -- true
	[ ! -e /tmp/placed ] || die "a removed member got the GPU"
	out=$(as carol gpushare run -t vision --grant dev -- true 2>&1) && die "a removed member runs on a GPU"
	[[ $out == *"carol may not run on a GPU"* ]] || die "a request of a removed member ends with: $out"
	running_is "$carols" 1 && running_is "$bobs" 1 || die "a lease of a removed member was stopped"
	out=$(as carol gpushare lease stop "$bobs" 2>&1) && die "a removed member stopped the lease of another"
	as carol gpushare lease stop "$carols"
	as bob gpushare lease stop "$bobs"
}

# With on_removal: stop leases that run are stopped: by an apply with --force, or some time after the group was left.
check_removed_running() {
	local carols bobs code=0
	gpasswd -a bob lab-club >/dev/null
	must_members "alice, carol" "on_removal: stop"
	carols=$(detached carol)
	bobs=$(detached bob)
	members alice "on_removal: stop" || code=$?
	want "the exit code of the apply without --force" "$code" 5
	grep -q -- "$carols.*" /run/lab/members.out || die "the refusal does not name the lease: $(cat /run/lab/members.out)"
	running_is "$carols" 1 || die "the refused apply stopped the lease"
	members alice "on_removal: stop" --force || die "$(cat /run/lab/members.out)"
	until_true 30 running_is "$carols" 0
	running_is "$bobs" 1 || die "the lease of a member was stopped"
	leaves_club bob
	echo "$bobs" >/run/lab/removed
}

# serve_silent mounts a file system of alice, as fusermount does, which a process outside of all leases serves. It leaves the
# server in $server.
silent=/run/lab/silent
serve_silent() {
	modprobe fuse
	mkdir -p "$silent"
	rm -f /run/lab/silent.out
	env "GPUSHARE_TEST_SILENTFS=serve $silent 2001" "$attacker" >/run/lab/silent.out 2>&1 </dev/null &
	server=$!
	disown
	trap 'kill -KILL "$server" 2>/dev/null || true; umount -l "$silent" || true' EXIT # of this check, whether it passes or fails
	until_true 30 says "$server" /run/lab/silent.out serves
}
# want_aborted: the audit has that the connection was aborted, the file system answers with an error, and the GPU is granted to the next
# request. Its server is ended only where the kernel says which connection it serves: it may serve others.
want_aborted() {
	local out
	out=$(gpushare audit --json --since 1h | grep 'which was killed' | grep "the FUSE file system at $silent " || true)
	[[ $out == *"is aborted"* ]] || die "the audit has: $out"
	until_true 20 refuses
	as alice gpushare run -q -t vision --grant big -- true
	want "conditions" "$(field '[.node.conditions[]? | select(.kind == "lease-not-ended") | .message] | join("; ")')" ""
}
refuses() {
	local out
	out=$(timeout -s KILL 5 stat "$silent/lost" 2>&1)
	[[ $out == *"endpoint is not connected"* || $out == *"connection abort"* ]]
}
has_exited() { ended "$1" || grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"; }

# The process of a lease waits for a file system of its user, which never answers.
check_silent_lease() {
	local id began out
	serve_silent
	begin alice waits.out waits gpushare run -q -t vision --grant big -- env "GPUSHARE_TEST_SILENTFS=wait stat $silent/lost" "$attacker"
	until_true 30 says "$server" /run/lab/silent.out silent
	id=$(lease_with "$pid")
	began=$(uptime_ms)
	out=$(as alice gpushare lease stop "$id" 2>&1) || die "the stop failed: $out; control files: $(grep fusectl /proc/mounts); of the daemon: $(grep fusectl "/proc/$(property gpushared.service MainPID)/mounts")"
	note "it was stopped in $(($(uptime_ms) - began)) ms"
	running_is "$id" 0 || die "the lease is still there"
	has_exited "$pid" || die "its process is still there"
	want_aborted
}

# The file of a detached program is there. The request fails in time, and says where it waits.
check_silent_program() {
	local out
	serve_silent
	out=$(as alice perl -MSocket -e '
		my $s;
		socket($s, PF_UNIX, SOCK_STREAM, 0) && connect($s, pack_sockaddr_un("/run/gpushare/gpushare.sock")) or die "cannot connect: $!\n";
		my $body = $ARGV[0];
		syswrite($s, "POST /v1/leases HTTP/1.0\r\nHost: gpushare\r\nContent-Type: application/json\r\nContent-Length: " . length($body) . "\r\n\r\n$body");
		local $/;
		print <$s>;' "{\"tenant\":\"vision\",\"grant\":\"big\",\"command\":[\"program\"],\"detach\":{\"path\":\"$silent/sealed\",\"dir\":\"/\",\"umask\":18}}")
	[[ $out == *"it does not run after "*"it waits in execve of $silent/sealed"* ]] || die "the answer is $out"
	until_true 30 no_big
	want_aborted
}
no_big() { [ "$(field '[.leases[] | select(.grant == "big")] | length')" = 0 ]; }

# The directory says it a second time after the interval in which the daemon converges, during the checks before this one.
check_removed_group() {
	until_true 60 running_is "$(cat /run/lab/removed)" 0
	gpushare audit --since 1h | grep "lease $(cat /run/lab/removed) of user bob is stopped: bob is not a member" >/dev/null || die "the audit does not say why the lease was stopped"
	gpushare apply -f "$accepted" >/run/lab/members.out 2>&1 || die "$(cat /run/lab/members.out)"
	groupdel lab-club
}

# Another process of the user takes the standard output of the process in its argument (434: pidfd_open, 438: pidfd_getfd), and keeps it.
cat >/run/lab/outsider <<'PERL'
#!/usr/bin/perl
my $process = syscall(434, shift() + 0, 0);
$process >= 0 && syscall(438, $process, 1, 0) >= 0 or die "cannot take the output: $!\n";
$| = 1;
print "holds\n";
sleep 600 while 1;
PERL
chmod 0755 /run/lab/outsider

# The outputs of detached commands are open outside of their leases. The leases end all the same, with results and outputs, and no
# process of root stays for them.
check_outputs() {
	local i id main ids=() leaves=()
	outsiders=()
	scope=$(sysctl -n kernel.yama.ptrace_scope)
	rm -f /run/lab/go
	mkfifo -m 0666 /run/lab/go
	exec 5<>/run/lab/go
	trap 'sysctl -q kernel.yama.ptrace_scope=$scope; kill -KILL "${outsiders[@]}" || true' EXIT # of this check, whether it passes or fails
	sysctl -q kernel.yama.ptrace_scope=0 # Users may trace all of their processes.
	for i in 1 2; do
		id=$(as alice gpushare run --detach -q -t vision --grant dev -- bash -c "echo before; read -r x </run/lab/go; echo after; exit $i")
		main=$(field ".leases[] | select(.id == \"$id\") | .pid")
		ids+=("$id")
		leaves+=("$(unit_of "$main")")
		until_true 30 named "$main" bash
		begin alice "outsider.$i" holds /run/lab/outsider "$main"
		outsiders+=("$pid")
	done
	[[ ${leaves[0]} == /gpushare.slice/*"${ids[0]}"* ]] || die "the command is in ${leaves[0]}"
	printf '\n\n' >&5
	for i in 1 2; do
		until_true 30 has_result "${ids[i - 1]}" "$i"
		until_true 20 no_cgroup "${leaves[i - 1]}"
		ended "${outsiders[i - 1]}" && die "what keeps the output has ended: $(cat "/run/lab/outsider.$i")"
	done
	want "processes of root for them" "$(pgrep -u root -x gpushare-start || true)" ""
	want "what the first one printed" "$(as alice gpushare lease logs "${ids[0]}" | xargs)" "before after"
}
named() { [ "$(cat "/proc/$1/comm")" = "$2" ]; }
no_cgroup() { [ ! -d "$cgroot$1" ]; }

# A detached command has the audit login uid of its caller, although systemd starts it. It is not that of its user here.
check_login_uid() {
	[ -e /proc/self/loginuid ] || skip "the kernel has no login uids"
	local id
	id=$(bash -c 'echo 2003 >/proc/self/loginuid; exec setpriv --reuid alice --regid alice --init-groups env -i PATH=/usr/bin:/bin gpushare run --detach -q -t vision --grant dev -- bash -c "cat /proc/self/loginuid; echo"')
	until_true 30 has_result "$id" 0
	want "the login uid of the command" "$(as alice gpushare lease logs "$id" | xargs)" 2003
	want "the login uid in the audit" "$(gpushare audit --json --since 1h | gojq -r "select(.lease == \"$id\" and .login_uid != null) | .login_uid" | sort -u)" 2003
}

front() { pgrep -x gpushare-front; }
new_front() { # new_front OLD
	pid=$(front) && [ "$pid" != "$1" ] && grep -qs '^Seccomp:[[:space:]]2$' "/proc/$pid/status"
}
# The process that reads requests has a user and a unit of its own, and no rights. When it is killed, the next request is served by another.
check_front() {
	local unit status pid user
	user=$(id -u gpushare-front)
	until_true 30 new_front ""
	unit=$(unit_of "$pid")
	[[ $unit == /gpushared.slice/gpushare-front-*.service ]] || die "it is in $unit"
	want "its user" "$(ps -o user:32= -p "$pid")" gpushare-front
	for status in "/proc/$pid/task/"*/status; do
		want "what a thread of it may do" "$(awk '/^(Uid|Groups|Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):/ { print $1 $2 }' "$status" | xargs)" \
			"Uid:$user Groups:$(id -g gpushare-front) CapInh:0000000000000000 CapPrm:0000000000000000 CapEff:0000000000000000 CapBnd:0000000000000000 CapAmb:0000000000000000 NoNewPrivs:1 Seccomp:2"
	done
	[ "$(readlink "/proc/$pid/ns/net")" != "$(readlink /proc/self/ns/net)" ] || die "it has the network of the host"
	[ "$(cat "$cgroot$unit/memory.max")" != max ] || die "its memory is not limited"
	want "its files" "$(find "/proc/$pid/fd" -type l -printf '%l\n' | grep -v -e '^socket:' -e '^anon_inode:' || true)" ""
	kill -KILL "$pid"
	as alice gpushare status >/run/lab/front.out 2>&1 || die "the next request is not served: $(cat /run/lab/front.out)"
	until_true 30 new_front "$pid"
	want "conditions" "$(field '[.node.conditions[]? | select(.kind == "front") | .message] | join("; ")')" ""
}

# Each client that sends to the socket is a member, and then a caller without a role. Root and another member have their answers meanwhile,
# and the daemon goes on.
check_clients() {
	local kind name n who user began daemon
	daemon=$(property gpushared.service MainPID)
	while read -r kind name n who; do
		# Sockets that linger keep memory of TCP for a minute: the check after this one has them.
		[ "$kind" = socket ] && [ "$name" != passing ] || continue
		for user in alice:2001 carol:2003; do
			[ "$who" = any ] || [ $user = alice:2001 ] || continue
			began=$(uptime_ms)
			begin ${user%:*} hostile.socket ready env "$(hostile "$name" "$n" ${user#*:})" "$attacker"
			note "$name: ${user%:*} began after $(($(uptime_ms) - began)) ms"
			began=$(uptime_ms)
			timeout 60 gpushare status >/dev/null </dev/null || die "next to $name root gets no answer"
			as bob timeout 60 gpushare status >/dev/null </dev/null || die "next to $name another member gets no answer"
			note "$name: root and another member have their answers after $(($(uptime_ms) - began)) ms"
			kill -KILL "$pid"
			want "the daemon after $name" "$(property gpushared.service MainPID)" "$daemon"
		done
	done <<<"$clients"
}

# Sockets whose close lasts a minute are passed, beyond the limits of connections and within them. The front stays, and the end of the
# daemon does not wait for one.
check_passed() {
	local front began n
	local -a pids
	front=$(pgrep -x gpushare-front)
	n=$(awk '$2 == "passing" { print $3 }' <<<"$clients")
	begin carol hostile.outside ready env "$(hostile passing "$n" 2003)" "$attacker"
	pids+=("$pid")
	begin alice hostile.member ready env "$(hostile passing "$n" 2001)" "$attacker"
	pids+=("$pid")
	note "passed: $(cat /run/lab/hostile.outside /run/lab/hostile.member | xargs)"
	timeout 20 gpushare status >/dev/null || die "root gets no answer"
	want "the front" "$(pgrep -x gpushare-front)" "$front"
	began=$(uptime_ms)
	timeout 30 systemctl restart gpushared.service || die "the daemon does not end"
	note "it started again in $(($(uptime_ms) - began)) ms"
	kill -KILL "${pids[@]}"
	until_true 60 answers
}

# The worker that calls the vendor's library may do less than its user.
check_worker() {
	local p status
	for p in $(pgrep -x gpushare-nvml); do
		tr '\0' ' ' <"/proc/$p/cmdline" | grep -q -e ' --confined ' || die "its files are not restricted: $(journalctl --no-pager -b -o cat -g 'of the GPU worker' | tail -n 1)"
		for status in "/proc/$p/task/"*/status; do
			want "what a thread of the worker may do" "$(awk '/^(NoNewPrivs|Seccomp):/ { print $1 $2 }' "$status" | xargs)" "NoNewPrivs:1 Seccomp:2"
		done
	done
	[ -n "${status:-}" ] || die "there is no worker"
}

check_as_before() {
	want "the leases" "$(field '[.leases[] | "\(.tenant)/\(.grant)"] | sort | join(" ")')" "speech/serve vision/dev vision/train"
	want_moving "$(job speech serve)"
}
