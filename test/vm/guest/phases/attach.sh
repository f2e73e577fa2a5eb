# Units and processes that run already are attached, and containers of podman run with the slice of a grant and its CDI
# device.
# checks: described container container_restart container_privileged container_stops container_killed container_second container_reserved container_elsewhere unit pid

. /opt/lab/guest/product.sh

rootfs=/run/lab/rootfs
# The overlay module is not loaded here, and podman keeps the storage driver of its default directory.
pod() { podman --storage-driver=vfs --root=/run/lab/storage --runroot=/run/lab/storage-run "$@"; }
make_rootfs() {
	[ -x $rootfs/bin/busybox ] && return
	mkdir -p $rootfs/{bin,proc,sys,dev,tmp,etc,run,var,gpus}
	cp /bin/busybox $rootfs/bin/busybox
	ln -s busybox $rootfs/bin/sh
}
# container NAME OPTION... -- SHELL_COMMAND runs in the background; the options are those that gpushare prints.
container() {
	local name=$1 options=()
	shift
	while [ "$1" != -- ]; do
		options+=("$1")
		shift
	done
	make_rootfs
	pod run -d --name "$name" --network=none --log-driver=none "${options[@]}" --rootfs $rootfs /bin/busybox sh -c "$2"
}
# line TENANT GRANT [OPTION...] gives the options of the line that gpushare prints for podman.
line() {
	gpushare env --cdi "${@:3}" -t "$1" --grant "$2" | sed 's/^podman run //; s/ IMAGE$//'
}
main_of() { pod inspect --format '{{.State.Pid}}' "$1"; }
lease_at() { field ".leases[] | select(.isolation.cgroup == \"$1\") | .id"; }
has_lease() { [ -n "$(lease_at "$1")" ]; }
no_lease() { [ "$(field "[.leases[] | select(.id == \"$1\")] | length")" = 0 ]; }

# The CDI file is valid, only root can read it, and it does not change without a cause.
check_described() {
	local f=/run/cdi/gpushare-vision.dev.json before
	until_true 10 test -s $f
	want "its owner and mode" "$(stat -c '%U %a' $f)" "root 600"
	want "its kind" "$(gojq -r .kind $f)" gpushare.dev/gpu
	want "the numbers of its GPU" "$(gojq -r '.devices[0].containerEdits.deviceNodes[] | select(.path == "/dev/nvidia1") | "\(.major):\(.minor)"' $f)" 195:1
	note "$(gojq -c '.devices[0].containerEdits | {nodes: [.deviceNodes[].path], mounts: [(.mounts // [])[].containerPath], env}' $f)"
	[ ! -e /run/cdi/gpushare-speech.serve.json ] || die "a grant of MPS is described to runtimes"
	before=$(stat -c %i:%Y $f)
	gpushare config reload
	want "the file after a converge without changes" "$(stat -c %i:%Y $f)" "$before"
	note "$(gpushare env --cdi -t vision --grant dev)"
}

check_unit() {
	local main cg id
	systemd-run --quiet --unit=lab-attached --uid=alice sleep 3000
	main=$(property lab-attached.service MainPID)
	cg=$(cgroup_of lab-attached.service)
	gpushare lease attach -t vision --grant dev --unit lab-attached -- hub >/run/lab/attach 2>&1 || die "$(cat /run/lab/attach)"
	note "$(cat /run/lab/attach)"
	id=$(lease_at "$cg")
	want "its origin" "$(field ".leases[] | select(.id == \"$id\") | \"\(.origin) \(.isolation.unit) \(.user)\"")" "attached lab-attached.service alice"
	want "the cgroup of its process" "$(unit_of "$main")" "$cg"
	systemctl daemon-reload
	systemctl restart gpushared.service
	until_true 30 answers
	want "the lease after a restart of the daemon" "$(lease_at "$cg")" "$id"
	gpushare lease release "$id"
	want "the unit after the release" "$(property lab-attached.service MainPID)" "$main"
	gpushare lease attach -t vision --grant dev --unit lab-attached.service >/dev/null
	id=$(lease_at "$cg")
	systemctl stop lab-attached.service
	until_true 10 no_lease "$id"
}

# A member attaches a process of their login. It is not moved.
check_pid() {
	local id main
	login alice 'sleep 3001 & echo $! >/tmp/attached; gpushare lease attach --pid $! --grant dev -- by-hand' >/run/lab/attach 2>&1 || die "$(cat /run/lab/attach)"
	main=$(cat /tmp/attached)
	id=$(field ".leases[] | select(.pid == $main) | .id")
	[ -n "$id" ] || die "no lease has process $main: $(cat /run/lab/attach)"
	[[ $(unit_of "$main") == /user.slice/user-2001.slice/* ]] || die "it was moved to $(unit_of "$main")"
	local code=0 out
	out=$(login bob "gpushare lease attach --pid $main --grant dev" 2>&1) || code=$?
	want "the exit code for the process of another user ($out)" "$code" 4
	kill "$main"
	until_true 30 no_lease "$id"
}

# A container is a lease of its grant, sees its one GPU, and has the limits and device rules of its tenant.
check_container() {
	local pid cg id leaf
	# shellcheck disable=SC2046 # it is several options
	container one $(line vision dev) -- 'while :; do /bin/busybox sleep 1; done' >/run/lab/podman 2>&1 || die "$(cat /run/lab/podman)"
	pid=$(main_of one)
	leaf=$(unit_of "$pid") # The processes are in a cgroup below the scope.
	cg=$leaf
	[[ $cg == /gpushare.slice/gpushare-vision.slice/gpushare-vision-dev.slice/libpod-* ]] || die "it runs in $cg"
	cg=${cg%%.scope*}.scope
	until_true 20 has_lease "$cg"
	id=$(lease_at "$cg")
	want "its origin" "$(field ".leases[] | select(.id == \"$id\") | \"\(.origin) \(.tenant)/\(.grant)\"")" "container vision/dev"
	note "$(field ".leases[] | select(.id == \"$id\") | .isolation.not_enforced | join(\"; \")")"
	want "its environment" "$(tr '\0' '\n' <"/proc/$pid/environ" | grep -c -e '^CUDA_VISIBLE_DEVICES=GPU-' -e '^GPUSHARE_GRANT=dev$' -e '^NVIDIA_VISIBLE_DEVICES=void$')" 3
	note "its GPU nodes: $(ls "/proc/$pid/root/dev" | grep nvidia | xargs)"
	[ -c "/proc/$pid/root/dev/nvidia1" ] && [ ! -e "/proc/$pid/root/dev/nvidia0" ] || die "its nodes are $(ls "/proc/$pid/root/dev" | xargs)"
	# As a process of the container that creates the nodes itself.
	want_open "$leaf" $root/dev/nvidia1 through
	want_open "$leaf" $root/dev/nvidia0 denied
	want_open "$leaf" $root/dev/nvidia2 denied
	want "the tenant's memory limit, above it" "$(cat "$cgroot/gpushare.slice/gpushare-vision.slice/memory.max")" $((256 << 20))
	echo "$id $cg $leaf" >"$state/one"
}

check_container_restart() {
	local id cg leaf
	read -r id cg leaf <"$state/one"
	systemctl restart gpushared.service
	until_true 30 answers
	systemctl daemon-reload
	want_open "$leaf" $root/dev/nvidia2 denied
	want_open "$leaf" $root/dev/nvidia1 through
	want "the lease after a restart" "$(lease_at "$cg")" "$id"
	pod kill one >/dev/null
	until_true 20 no_lease "$id"
	pod rm -f one >/dev/null
}

# A privileged container opens no more than its slice: the device rules of the slice apply above those of the container.
check_container_privileged() {
	local leaf
	if ! container four --privileged --cgroup-parent=gpushare-vision-dev.slice -- '/bin/busybox sleep 3000' >/run/lab/podman 2>&1; then
		# The runtime creates the nodes of all host devices, which the device rules of the slice do not permit.
		grep -q 'mknod .*Operation not permitted' /run/lab/podman || die "$(cat /run/lab/podman)"
		note "a privileged container does not start: $(grep -o 'mknod.*not permitted' /run/lab/podman | head -n 1)"
		pod rm -f -t 0 four >/dev/null 2>&1 || true
		return
	fi
	leaf=$(unit_of "$(main_of four)")
	want_open "$leaf" $root/dev/nvidia1 through
	want_open "$leaf" $root/dev/nvidia0 denied
	want_open "$leaf" $root/dev/nvidia2 denied
	pod rm -f -t 0 four >/dev/null
}

# The container's processes and the daemon have each a profile, and that of the container takes no signals of the daemon.
want_two_profiles() { # want_two_profiles PID
	local label
	label=$(cat "/proc/$1/attr/current")
	[[ $label == containers-default*"(enforce)" ]] || die "the profile of the container is $label"
	want "the profile of the daemon" "$(cat "/proc/$(property gpushared.service MainPID)/attr/current")" "gpushared (enforce)"
	note "the profile of the container: $label"
}

# A stop of the lease stops the whole container, and podman reports it as exited. The process gets SIGTERM, and decides how it exits.
check_container_stops() {
	local id cg
	# shellcheck disable=SC2046 # it is several options
	container two $(line vision dev) -- 'trap "exit 43" TERM; while :; do /bin/busybox sleep 1; done' >/run/lab/podman 2>&1 || die "$(cat /run/lab/podman)"
	want_two_profiles "$(main_of two)"
	cg=$(unit_of "$(main_of two)")
	cg=${cg%%.scope*}.scope
	until_true 20 has_lease "$cg"
	id=$(lease_at "$cg")
	gpushare lease stop "$id"
	until_true 20 exited two
	want "the exit code of its program" "$(pod inspect --format '{{.State.ExitCode}}' two)" 43
	pod rm -f two >/dev/null
}

# One that ignores SIGTERM has its grace, and is killed.
check_container_killed() {
	local id cg
	# shellcheck disable=SC2046 # it is several options
	container deaf $(line vision dev) -- 'trap "" TERM; while :; do /bin/busybox sleep 1; done' >/run/lab/podman 2>&1 || die "$(cat /run/lab/podman)"
	cg=$(unit_of "$(main_of deaf)")
	cg=${cg%%.scope*}.scope
	until_true 20 has_lease "$cg"
	id=$(lease_at "$cg")
	gpushare lease stop "$id"
	until_true 40 exited deaf
	want "the exit code of its program" "$(pod inspect --format '{{.State.ExitCode}}' deaf)" 137
	pod rm -f deaf >/dev/null
}
exited() { [ "$(pod inspect --format '{{.State.Status}}' "$1")" = exited ]; }

# A second container in a grant of one exclusive GPU gets no lease. A condition reports it, and the container runs on.
check_container_second() {
	local first second
	# shellcheck disable=SC2046 # it is several options
	container big1 $(line vision big) -- '/bin/busybox sleep 3000' >/run/lab/podman 2>&1 || die "$(cat /run/lab/podman)"
	first=$(unit_of "$(main_of big1)")
	until_true 20 has_lease "${first%%.scope*}.scope"
	# shellcheck disable=SC2046 # it is several options
	container big2 $(line vision big) -- '/bin/busybox sleep 3000' >/run/lab/podman 2>&1 || die "$(cat /run/lab/podman)"
	second=$(unit_of "$(main_of big2)")
	until_true 20 reported
	note "$(field '.node.conditions[] | select(.kind == "container") | .message')"
	! has_lease "${second%%.scope*}.scope" || die "both have a lease of a grant of one GPU"
	pod rm -f -t 0 big1 big2 >/dev/null
	until_true 20 cleared
}
reported() { [ "$(field '[.node.conditions // [] | .[] | select(.kind == "container")] | length')" = 1 ]; }
cleared() { ! reported; }

# A device of its own: its place is no other's, also before the container runs, and the container is recognised by the device.
check_container_reserved() {
	local line id cg out code=0
	line=$(line vision big --reserve)
	id=${line##*--device=gpushare.dev/gpu=}
	out=$(gpushare env --cdi --reserve -t vision --grant big 2>&1) || code=$?
	[ "$code" != 0 ] || die "two requests got the one GPU: $line, and $out"
	note "$line; then: $out"
	# shellcheck disable=SC2086 # it is several options
	container own $line -- '/bin/busybox sleep 3000' >/run/lab/podman 2>&1 || die "$(cat /run/lab/podman)"
	cg=$(unit_of "$(main_of own)")
	cg=${cg%%.scope*}.scope
	until_true 20 has_lease "$cg"
	want "its lease" "$(lease_at "$cg")" "$id"
	[ -c "/proc/$(main_of own)/root/dev/nvidia2" ] || die "its nodes are $(ls "/proc/$(main_of own)/root/dev" | xargs)"
	pod rm -f -t 0 own >/dev/null
	until_true 20 no_lease "$id"
	until_true 20 test ! -e "/run/cdi/gpushare-$id.json"
}

# A container outside the slice of the grant is not restricted and is in no lease.
check_container_elsewhere() {
	local leases
	leases=$(field '.leases | length')
	container three --device gpushare.dev/gpu=vision.dev -- '/bin/busybox sleep 3000' >/run/lab/podman 2>&1 || die "$(cat /run/lab/podman)"
	[[ $(unit_of "$(main_of three)") != /gpushare.slice/* ]] || die "it runs in $(unit_of "$(main_of three)")"
	sleep 3 # No event is expected, so there is none to wait for.
	want "leases" "$(field '.leases | length')" "$leases"
	pod rm -f -t 0 three >/dev/null
}
