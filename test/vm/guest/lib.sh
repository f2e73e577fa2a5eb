# What the checks share: cgroup files, device nodes, and systemd over its bus.
cgroot=/sys/fs/cgroup
state=/var/lib/gpushare-lab
manager="org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
export LC_ALL=C

die() {
	echo "$*" >&2
	trap - ERR
	exit 1
}
skip() {
	echo "SKIP $*"
	exit 77
}
note() { echo "NOTE ${*//$'\n'/; }"; }
want() { # want WHAT GOT EXPECTED
	[ "$2" = "$3" ] || die "$1 is '$2', want '$3'"
}
# nap waits without a process, as sleep would be one.
exec 9<>/run/lab/never
nap() { read -rt "$1" -u 9 || true; } # nap SECONDS
until_true() { # until_true SECONDS COMMAND... polls what gives no event
	local end=$((SECONDS + $1)) what="${*:2}"
	shift
	until "$@"; do
		[ "$SECONDS" -lt "$end" ] || die "not within the time: $what"
		nap 0.1
	done
}
uptime_ms() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }

# Ways to log in. Only the first two create a session.
login() { # login USER COMMAND
	runuser -l "$1" -c "$2" </dev/null
}
ssh_as() { # ssh_as USER COMMAND
	ssh -o BatchMode=yes -o ConnectTimeout=60 "$1@localhost" "$2" </dev/null
}
as() { # as USER COMMAND...
	(exec_as "$@")
}
exec_as() { # the same in the place of this shell: in the background, $! is the command's own
	exec setpriv --reuid "$1" --regid "$1" --init-groups env -i PATH=/usr/bin:/bin "${@:2}"
}

# Nodes of a driver that is not loaded: open gives ENXIO when it is allowed and EPERM when it is denied.
make_nodes() {
	local minor
	for minor in 0 1 2 3; do
		[ -c /dev/nvidia$minor ] || mknod -m 0666 /dev/nvidia$minor c 195 $minor
	done
	[ -c /dev/nvidiactl ] || mknod -m 0666 /dev/nvidiactl c 195 255
	want "the kernel's module loader" "$(cat /proc/sys/kernel/modprobe)" ""
}
# A script that opens nodes in a cgroup or a login and prints one line for each. One process opens all of them, because
# processes are expensive here. A capability node is opened for reading: its mode does not allow writing.
opens='for node; do
	case $node in
	*/nvidia-cap[0-9]*) exec 3<"$node" ;;
	*) exec 3<>"$node" ;;
	esac && echo opened
done 2>&1 | sed "s/.*No such device or address$/through/; s/.*Operation not permitted$/denied/"'
opens_in() { # opens_in CGROUP NODE... as root, by one process
	bash -c 'echo $$ >"$1/cgroup.procs" && exec bash -c "$2" opens "${@:3}"' place "$cgroot$1" "$opens" "${@:2}" 2>&1
}
open_in() { opens_in "$1" "$2"; } # open_in CGROUP NODE prints through, denied or the error
want_open() { # want_open CGROUP NODE through|denied
	want "opening $2 in $1" "$(open_in "$1" "$2")" "$3"
}

property() { # property UNIT NAME
	systemctl show -P "$2" "$1"
}
cgroup_of() { property "$1" ControlGroup; }
unit_of() { sed -n 's/^0:://p' "/proc/$1/cgroup"; }

# A job that handles SIGTERM, like a training job that saves its work.
handles_term='trap "exit 0" TERM; while :; do sleep 600 & wait; done'

# start_lease SCOPE SLICE "DEVICE..." [STOP_SECONDS [JOB]] puts a new process of alice into a delegated scope and from
# there into the inner cgroup `run`, as the daemon does for a lease. It leaves the process id in $pid, the path in $leaf.
start_lease() {
	local scope=$1 slice=$2 devices=$3 stop=${4:-10} job=${5:-exec sleep 600} root list=() d
	setpriv --reuid alice --regid alice --clear-groups bash -c "$job" </dev/null >/dev/null 2>&1 &
	pid=$!
	disown
	for d in $devices; do list+=("$d" rw); done
	busctl call --quiet $manager StartTransientUnit "ssa(sv)a(sa(sv))" "$scope" fail 7 \
		PIDs au 1 "$pid" Slice s "$slice" Delegate b true CollectMode s inactive-or-failed \
		TimeoutStopUSec t "${stop}000000" \
		DevicePolicy s closed DeviceAllow "a(ss)" $((${#list[@]} / 2)) "${list[@]}" 0
	until_true 10 in_unit "$pid" "$scope"
	root=$(cgroup_of "$scope")
	leaf=$root/run
	mkdir "$cgroot$leaf"
	# A job may fork while it is moved.
	local p moved=yes
	while [ "$moved" = yes ]; do
		moved=no
		while read -r p; do
			echo "$p" >"$cgroot$leaf/cgroup.procs" 2>/dev/null || true
			moved=yes
		done <"$cgroot$root/cgroup.procs"
	done
	want "processes in the scope's root" "$(cat "$cgroot$root/cgroup.procs")" ""
	want "the cgroup of the process" "$(unit_of "$pid")" "$leaf"
}
in_unit() { [[ $(unit_of "$1") == */$2 ]]; }
end_lease() { # end_lease PID LEAF
	echo 1 >"$cgroot$2/cgroup.kill" 2>/dev/null || true
	until_true 10 ended "$1"
}
ended() { [ ! -d "/proc/$1" ]; }
frozen() { grep -q '^frozen 1$' "$cgroot$1/cgroup.events"; }
thawed() { grep -q '^frozen 0$' "$cgroot$1/cgroup.events"; }
freeze() {
	echo 1 >"$cgroot$1/cgroup.freeze"
	until_true 5 frozen "$1"
}
thaw() {
	echo 0 >"$cgroot$1/cgroup.freeze"
	until_true 5 thawed "$1"
}
set_properties() { # set_properties UNIT RUNTIME COUNT PROPERTY...
	busctl call --quiet $manager SetUnitProperties "sba(sv)" "$@"
}

# restricted_or_ended PID: the worker executes itself a moment after its start, when its files are restricted.
restricted_or_ended() { tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null | grep -x -- --confined >/dev/null || [ ! -e "/proc/$1" ]; }

# check_confined is run at the end of each phase: the programs of the package run with their profile of AppArmor in force, and the
# kernel has denied them nothing since the phase before.
check_confined() {
	local p name label running=() denied seen
	want "AppArmor" "$(cat /sys/module/apparmor/parameters/enabled)" Y
	for p in $(pgrep -x 'gpushared|gpushare-thaw|gpushare-nvml'); do
		name=$(cat "/proc/$p/comm" 2>/dev/null) || continue # It has ended.
		label=$(cat "/proc/$p/attr/current" 2>/dev/null) || continue
		want "the profile of $name" "$label" "$name (enforce)"
		if [ "$name" = gpushare-nvml ]; then
			until_true 10 restricted_or_ended "$p"
		fi
		running+=("$name")
	done
	# No pass because nothing runs: a phase that ends without the daemon has stopped it.
	if active gpushared.service; then
		[[ " ${running[*]} " == *" gpushared "* && " ${running[*]} " == *" gpushare-nvml "* ]] || die "of the daemon only '${running[*]}' was found"
	fi
	seen=$(cat /run/lab/denied 2>/dev/null || echo 0)
	denied=$(journalctl --no-pager -k -b -o cat | grep 'apparmor="DENIED"' | grep -E '(profile|label|peer)="gpushare' || true)
	echo "$denied" | grep -c . >/run/lab/denied || true
	[ "$(cat /run/lab/denied)" -le "$seen" ] || die "denied: $(echo "$denied" | tail -n "+$((seen + 1))" | sed 's/.*apparmor=/apparmor=/' | sort | uniq -c | sort -nr | head -n 12 | tr '\n' ';')"
	note "confined: ${running[*]:-nothing runs}"
}
active() { [ "$(property "$1" ActiveState)" = active ]; }
