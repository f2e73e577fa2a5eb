# Processes that stay where they are: a unit, a login's process, a container in a slice of ours.
# checks: unit pid podman podman_privileged podman_elsewhere

. /opt/lab/guest/product.sh

held_by() { field ".leases[] | select(.id == \"$1\") | \"\(.held) \(.tenant)/\(.grant)\""; }
id_of_pid() { field ".leases[] | select(.name == \"$1\") | .id"; }

check_unit() {
	systemd-run --quiet --unit=lab-hub --uid=alice sleep 3000
	local main cg id
	main=$(property lab-hub.service MainPID)
	cg=$(unit_of "$main")
	gpushare lease attach -t vision --grant dev --unit lab-hub.service -- hub >/run/lab/attach 2>&1 || die "$(cat /run/lab/attach)"
	note "$(cat /run/lab/attach)"
	id=$(field '.leases[] | select(.held == "unit") | .id')
	[ -n "$id" ] || die "no lease is held by a unit: $(field '.leases')"
	want "where the unit's process is" "$(unit_of "$main")" "$cg"
	systemctl daemon-reload
	systemctl restart gpushared.service
	until_true 30 answers
	want "the lease after a restart of the daemon" "$(field '.leases[] | select(.held == "unit") | .id')" "$id"
	gpushare lease release "$id"
	want "the unit after the release" "$(property lab-hub.service MainPID)" "$main"
	systemctl stop lab-hub.service
}

check_pid() {
	local id
	login alice 'sleep 3001 & gpushare lease attach --pid $! --grant dev -- by-hand; echo $! >/tmp/attached; sed -n s/^0:://p /proc/$!/cgroup' >/run/lab/attach 2>&1 || die "$(cat /run/lab/attach)"
	local main
	main=$(cat /tmp/attached)
	id=$(field ".leases[] | select(.pid == $main) | .id")
	[ -n "$id" ] || die "no lease has process $main: $(cat /run/lab/attach)"
	[[ $(unit_of "$main") == /user.slice/user-2001.slice/session-* ]] || die "it was moved to $(unit_of "$main")"
	gpushare lease show "$id"
	kill "$main"
	until_true 30 no_lease "$id"
}
no_lease() { [ "$(field "[.leases[] | select(.id == \"$1\")] | length")" = 0 ]; }

# A container whose parent is our slice has the slice's walls, whatever it was started with.
container() { # container PARENT OPTION... -- SHELL_COMMAND
	local parent=$1 options=()
	shift
	while [ "$1" != -- ]; do
		options+=("$1")
		shift
	done
	mkdir -p /run/lab/rootfs/{bin,gpus,proc,sys,dev,tmp,etc,run,var}
	[ -x /run/lab/rootfs/bin/busybox ] || cp /bin/busybox /run/lab/rootfs/bin/busybox
	podman --cgroup-manager=systemd run --rm --network=none --log-driver=none ${parent:+--cgroup-parent="$parent"} "${options[@]}" \
		-v $root/dev:/gpus --rootfs /run/lab/rootfs /bin/busybox sh -c "$2" 2>&1
}
try='for n in 1 2; do (exec 3<>/gpus/nvidia$n) 2>&1 | sed "s/.*: //"; done; /bin/busybox cat /proc/self/cgroup'

check_podman() {
	local out
	out=$(container gpushare-vision-dev.slice --device $root/dev/nvidia1 -- "$try") || die "$out"
	note "${out//$'\n'/; }"
	[[ $out == *"No such device or address"*"peration not permitted"* ]] || die "the container says: $out"
}

check_podman_privileged() {
	local out
	out=$(container gpushare-vision-dev.slice --privileged -- "$try") || die "$out"
	[[ $out == *"No such device or address"*"peration not permitted"* ]] || die "the privileged container says: $out"
}

# Elsewhere it is nobody's: nothing of ours holds it, which the documents say.
check_podman_elsewhere() {
	local out
	out=$(container "" --privileged -- "$try") || die "$out"
	note "${out//$'\n'/; }"
}
