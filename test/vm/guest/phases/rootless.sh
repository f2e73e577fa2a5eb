# A user without root runs containers of podman inside of a lease: such a container has what the lease has, no more, and ends with it.
# checks: cdi keeps sees privileged stops mps
# seconds: 300

. /opt/lab/guest/product.sh

tried=/run/lab/rootless.sh # what the user starts in a lease, with more options, a root and a command

# prepare USER gives a user a root of containers. The overlay module is not loaded here, so podman has the options of storage.
prepare() {
	local rootfs=/home/$1/rootfs library
	loginctl enable-linger "$1" # Else /run/user/UID, which podman uses, is removed ten seconds after the login.
	printf '%s\n' 'podman() { command podman --storage-driver=vfs --root="$HOME/s" --runroot="/run/user/$(id -u)/s" "$@"; }' \
		'[ "$1" = podman ] || set -- podman run --rm --network=none --log-driver=none $(gpushare env --podman) "$@"' '"$@"' >$tried
	mkdir -p "$rootfs"/{bin,proc,dev,sys,tmp,etc,run,var,gpus,lib64}
	cp /bin/busybox "$rootfs/bin/busybox"
	cp $burn "$rootfs/bin/burn"
	for library in $(ldd $burn | grep -o '/[^ ]*'); do install -D "$library" "$rootfs$library"; done
	# The shell of busybox ends for a redirection that fails, and would create a file.
	echo 'for node; do [ ! -e "$node" ] && echo absent && continue; (: <>"$node") && echo opened; done 2>&1; true' >"$rootfs/opens"
	chown -R "$1:$1" "$rootfs"
}
opened() { # what the lines of /opens say, in one line
	sed 's/.*No such device or address$/through/; s/.*Operation not permitted$/denied/' "$1" | xargs
}
in_lease() { # in_lease OPTION... COMMAND... as alice, in a lease of the GPU 2
	ssh_as alice "gpushare run -q -t vision --grant big -- sh $tried $*" 2>/run/lab/rootless.err >/run/lab/rootless.out || die "$(cat /run/lab/rootless.err /run/lab/rootless.out)"
}
lease_of_big() { field '.leases[] | select(.grant == "big") | .id'; }
no_lease_of_big() { [ -z "$(lease_of_big)" ]; }

# The CDI files are for root: a member gets the line that helps, and so does who asks for a grant of MPS.
check_cdi() {
	local out code=0
	prepare alice
	prepare bob
	out=$(ssh_as alice "gpushare env --cdi -t vision --grant big" 2>&1) || code=$?
	want "the exit code for a member" "$code" 4
	[[ $out == *"gpushare run -t vision --grant big -- sh -c 'podman run --rm \$(gpushare env --podman) IMAGE'"* ]] || die "$out"
	note "$out"
	out=$(gpushare env --cdi -t speech --grant serve 2>&1) && die "a grant of MPS has a CDI device: $out"
	[[ $out == *"gpushare run -t speech --grant serve -- sh -c"* ]] || die "$out"
	note "$out"
}

# The first podman of a user leaves a process, which is in the lease if podman was started there. The options come with a warning.
check_keeps() {
	local id
	in_lease --rootfs /home/alice/rootfs /bin/busybox true
	grep -q 'podman unshare true' /run/lab/rootless.err || die "there is no warning: $(cat /run/lab/rootless.err)"
	id=$(lease_of_big)
	[ -n "$id" ] || die "the lease has ended, so podman left no process, and the warning is wrong"
	gpushare lease stop "$id"
	until_true 20 no_lease_of_big
}

# A container has the nodes and the environment of its lease, and the lease ends with it.
check_sees() {
	ssh_as alice "sh $tried podman unshare true"
	in_lease --volume "$root/dev:/gpus" --rootfs /home/alice/rootfs /bin/busybox sh /opens /dev/nvidia2 /dev/nvidiactl /dev/nvidia0 /dev/nvidia1 /gpus/nvidia0 /gpus/nvidia1 /gpus/nvidia2
	want "nvidia2, nvidiactl, nvidia0 and nvidia1, then all of the host" "$(opened /run/lab/rootless.out)" "through through absent absent denied denied through"
	want "what it prints next to that" "$(cat /run/lab/rootless.err)" ""
	until_true 20 no_lease_of_big
	in_lease --rootfs /home/alice/rootfs /bin/busybox env
	want "its environment" "$(grep -c -e '^CUDA_VISIBLE_DEVICES=GPU-' -e '^GPUSHARE_LEASE=vision-big-' -e '^NVIDIA_VISIBLE_DEVICES=void$' /run/lab/rootless.out)" 3
	until_true 20 no_lease_of_big
}

# The device rules are those of the lease, above all that podman gives.
check_privileged() {
	in_lease --privileged --volume "$root/dev:/gpus" --rootfs /home/alice/rootfs /bin/busybox sh /opens /gpus/nvidia2 /gpus/nvidia0 /gpus/nvidia1 /gpus/nvidia3
	want "what a privileged container opens" "$(opened /run/lab/rootless.out)" "through denied denied denied"
	until_true 20 no_lease_of_big
}

# It is in the cgroup of its lease: it is frozen there, and a stop leaves nothing of it.
check_stops() {
	local id inside
	id=$(ssh_as alice "gpushare run -q --detach -t vision --grant big -- sh $tried --rootfs /home/alice/rootfs /bin/busybox sleep 1235")
	until_true 60 in_container
	inside=$(unit_of "$(pgrep -xf '/bin/busybox sleep 1235')")
	[[ $inside == /gpushare.slice/gpushare-vision.slice/*"$id"* ]] || die "the container is in $inside, the lease is $id"
	gpushare tenant freeze vision
	until_true 20 frozen "$inside"
	gpushare tenant thaw vision
	until_true 20 thawed "$inside"
	gpushare lease stop "$id"
	until_true 20 no_container
	[ ! -d "$cgroot$inside" ] || die "its cgroup is still there, with $(cat "$cgroot$inside/cgroup.procs" | xargs)"
	# What ended it was SIGKILL, because sleep has no handler as the first process of a container. Podman's monitor was killed with it.
	note "podman afterwards: $(ssh_as alice "sh $tried podman rm -fa; sh $tried podman rm -fa; sh $tried podman ps -aq" 2>&1 | cut -c1-150)"
}
in_container() { [ -n "$(pgrep -xf '/bin/busybox sleep 1235')" ]; }
no_container() { ! in_container; }

# A container of a grant of MPS is a client, with the limits that its lease gives, like a process of the lease without a container.
check_mps() {
	local id
	ssh_as bob "sh $tried podman unshare true"
	id=$(ssh_as bob "gpushare run -q --detach -t speech --grant serve -- sh $tried --env GPUSIM_ROOT=$root --volume $root/run/gpusim:$root/run/gpusim --rootfs /home/bob/rootfs /bin/burn --host-dev --memory 1GiB --hold")
	until_true 60 is_client "$id"
	note "$(field ".gpus[3].processes[] | select(.lease == \"$id\")" | xargs)"
	gpushare lease stop "$id"
	until_true 20 no_client "$id"
	loginctl disable-linger alice
	loginctl disable-linger bob
}
is_client() { [ "$(kinds "$1")" = mps ]; }
no_client() { [ -z "$(kinds "$1")" ]; }
kinds() { field "[.gpus[].processes // [] | .[] | select(.lease == \"$1\") | .kind] | join(\" \")"; }
