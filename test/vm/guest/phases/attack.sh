# What a tenant cannot do to another tenant on systemd, nor to their own restrictions. Alice, a member of vision with a
# running lease, attacks bob of speech. polkit decides with the rules of the distribution.
# checks: target systemctl bus cgroups user_manager nodes ptrace product forks harmless

. /opt/lab/guest/product.sh

# The targets: bob's job, its unit and cgroup, and those of alice.
check_target() {
	[ -d "/proc/$(job speech serve)" ] || start_job bob speech serve --memory 1GiB --kernel 250ms --queue 2 --seconds 3000
	local target
	target=$(job speech serve)
	{
		echo "target=$target"
		echo "target_start=$(cut -d' ' -f22 "/proc/$target/stat")"
		echo "target_leaf=$(leaf_of "$target")"
		echo "target_unit=$(basename "$(dirname "$(leaf_of "$target")")")"
		echo "target_lease=$(lease_of speech serve | cut -d' ' -f1)"
		echo "own=$(job vision train)"
		echo "own_leaf=$(leaf_of "$(job vision train)")"
		echo "own_unit=$(basename "$(dirname "$(leaf_of "$(job vision train)")")")"
	} >/run/lab/target
	cat /run/lab/target
	. /run/lab/target
	[[ $target_unit == gpushare-*.scope && $own_unit == gpushare-*.scope ]] || die "the target is in $target_unit, we are in $own_unit"
}

# denied WHAT COMMAND... runs it as alice; it must fail for lack of rights.
denied() {
	local what=$1 out code=0
	shift
	out=$(as alice "$@" 2>&1) || code=$?
	[ "$code" != 0 ] || die "alice could $what: $out"
	case $out in
	*[Dd]enied* | *"not permitted"* | *"not authorized"* | *"nteractive authentication required"* | *"Read-only file system"* | *"may not "* | *"that you may "* | *"you are no member of it"* | *"Could not attach"*) ;;
	*) die "$what failed, but not for lack of rights: $out" ;;
	esac
}

check_systemctl() {
	. /run/lab/target
	local verb
	for verb in stop kill freeze thaw restart; do
		denied "$verb a neighbour's lease" systemctl --no-ask-password $verb "$target_unit"
	done
	denied "stop a neighbour's slice" systemctl --no-ask-password stop gpushare-speech.slice
	denied "lift the limits of the own slice" systemctl --no-ask-password set-property gpushare-vision.slice MemoryMax=infinity
	denied "open the own slice" systemctl --no-ask-password set-property --runtime gpushare-vision.slice DevicePolicy=auto
	denied "open the own lease" systemctl --no-ask-password set-property --runtime "$own_unit" "DeviceAllow=char-* rw"
	denied "stop the daemon" systemctl --no-ask-password stop gpushared.service
	denied "stop the thaw watchdog" systemctl --no-ask-password stop gpushare-thaw.service
	denied "start a unit in a neighbour's slice" systemd-run --no-ask-password --slice=gpushare-speech.slice true
	denied "start a scope in the own slice" systemd-run --no-ask-password --scope --slice=gpushare-vision.slice true
}

check_bus() {
	. /run/lab/target
	local -a call=(busctl --allow-interactive-authorization=no call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager)
	denied "stop by the bus" "${call[@]}" StopUnit ss "$target_unit" replace
	denied "kill by the bus" "${call[@]}" KillUnit ssi "$target_unit" all 9
	denied "freeze by the bus" "${call[@]}" FreezeUnit s "$target_unit"
	denied "clean by the bus" "${call[@]}" ResetFailedUnit s "$target_unit"
	denied "revert a slice" "${call[@]}" RevertUnitFiles as 1 gpushare-vision.slice
	denied "set the own slice's properties" "${call[@]}" SetUnitProperties "sba(sv)" gpushare-vision.slice true 1 TasksMax t 100000
	denied "open the own lease" "${call[@]}" SetUnitProperties "sba(sv)" "$own_unit" true 1 DeviceAllow "a(ss)" 1 "char-*" rwm
	denied "join a neighbour's slice" "${call[@]}" StartTransientUnit "ssa(sv)a(sa(sv))" evil.scope fail 2 \
		PIDs au 1 "$own" Slice s gpushare-speech-serve.slice 0
	denied "take a neighbour's process away" "${call[@]}" StartTransientUnit "ssa(sv)a(sa(sv))" evil.scope fail 1 PIDs au 1 "$target" 0
	denied "move a neighbour's process" "${call[@]}" AttachProcessesToUnit ssau "$own_unit" "" 1 "$target"
	denied "move the own process to a neighbour" "${call[@]}" AttachProcessesToUnit ssau "$target_unit" "" 1 "$own"
	denied "reload the manager" "${call[@]}" Reload
}

check_cgroups() {
	. /run/lab/target
	local leaf file
	for leaf in "$target_leaf" "$own_leaf" "$(dirname "$own_leaf")" "$(dirname "$target_leaf")"; do
		for file in cgroup.procs cgroup.freeze cgroup.kill cgroup.threads cgroup.subtree_control; do
			denied "write $file in $leaf" bash -c 'echo 1 >"$1"' write "$cgroot$leaf/$file"
		done
		denied "make a cgroup in $leaf" mkdir "$cgroot$leaf/mine"
	done
	for file in memory.max cpu.max pids.max cpu.weight; do
		denied "write the own slice's $file" bash -c 'echo max >"$1"' write "$cgroot$(cgroup_of gpushare-vision.slice)/$file"
	done
	# As root of a user namespace with a hierarchy of its own, too.
	denied "mount the hierarchy again" unshare -Urm bash -c 'mount -t cgroup2 none /mnt && echo 1 >"/mnt$1/cgroup.freeze"' mount "$target_leaf"
}

# A user's own manager makes slices of any name, but below that user. From a login it may not move a process at all.
check_user_manager() {
	local out before
	before=$(cat "$cgroot/gpushare.slice/gpushare-speech.slice/pids.current")
	out=$(login alice 'systemd-run --user --quiet --wait --pipe systemd-run --user --quiet --scope --slice=gpushare-speech.slice sed -n s/^0:://p /proc/self/cgroup')
	[[ $out == /user.slice/user-2001.slice/user@2001.service/gpushare.slice/gpushare-speech.slice/* ]] || die "a slice of that name is $out"
	want "tasks in the slice of that name of gpushare" "$(cat "$cgroot/gpushare.slice/gpushare-speech.slice/pids.current")" "$before"
}

# Alice cannot create a device node: not as herself, not as root of a namespace, and not under another name of the device.
check_nodes() {
	denied "make a node" mknod /tmp/mine c 195 0
	denied "make a node in a user namespace" unshare -Ur mknod /tmp/mine c 195 0
	denied "mount devtmpfs in a namespace" unshare -Urm mount -t devtmpfs dev /mnt
	# A lease of alice opens its own GPU, and a neighbour's GPU under no name.
	. /run/lab/target
	ln -sf $root/dev/nvidia3 /tmp/link
	mknod -m 0666 "$state/same" c 195 3
	want_open "$own_leaf" /tmp/link denied
	want_open "$own_leaf" "$state/same" denied
	want_open "$own_leaf" $root/dev/nvidia0 through
	rm -f /tmp/link "$state/same"
}

check_ptrace() {
	. /run/lab/target
	denied "trace a neighbour" strace -p "$target" -o /dev/null
	denied "read a neighbour's memory" cat "/proc/$target/mem"
	denied "read a neighbour's environment" cat "/proc/$target/environ"
	denied "see a neighbour's descriptors" ls "/proc/$target/fd/"
	denied "signal a neighbour" bash -c 'kill -0 "$1"' kill "$target"
	denied "stop a neighbour" bash -c 'kill -STOP "$1"' kill "$target"
	denied "change a neighbour's priority" renice -n 19 -p "$target"
	denied "bind a neighbour to a CPU" taskset -p 1 "$target"
}

check_product() {
	. /run/lab/target
	denied "stop a neighbour's lease" gpushare lease stop "$target_lease"
	denied "run as a neighbour" gpushare run -t speech -- true
	denied "change the spec" gpushare apply -f "$spec"
	denied "change it as root of a namespace" unshare -Ur gpushare apply -f "$spec"
	local seen
	seen=$(as alice gpushare status --json | gojq -r '[.leases[].tenant] | unique | join(" ")')
	want "tenants whose leases alice sees" "$seen" vision
}

# All processes that a lease forks end with it, those in other sessions included.
check_forks() {
	exec_as alice gpushare run -t vision --grant dev -- bash -c 'setsid sleep 3600 & (setsid sleep 3601 &) ; nohup sleep 3602 >/dev/null 2>&1 & exec sleep 3603' \
		>/run/lab/forks 2>&1 </dev/null &
	local main=$! id
	disown
	until_true 30 four_sleepers
	id=$(field ".leases[] | select(.pid == $main) | .id")
	[ -n "$id" ] || die "no lease has process $main: $(cat /run/lab/forks)"
	gpushare lease stop "$id"
	until_true 30 no_sleepers
}
four_sleepers() { [ "$(pgrep -fc '^sleep 360[0-3]$')" = 4 ]; }
no_sleepers() { [ "$(pgrep -fc '^sleep 360[0-3]$')" = 0 ]; }

check_harmless() {
	. /run/lab/target
	want "the target's start" "$(cut -d' ' -f22 "/proc/$target/stat")" "$target_start"
	want "the target's cgroup" "$(leaf_of "$target")" "$target_leaf"
	want "the tasks of the attacker's slice" "$(cat "$cgroot$(cgroup_of gpushare-vision.slice)/pids.max")" 128
	active gpushared.service
	active gpushare-thaw.service
	want_moving "$target"
}
