# After a boot: the limits of a slice are in force again, and no process can open a GPU until the daemon grants access.
# checks: rebooted limits_back no_gpu

tenant=lab-acme.slice
grant=lab-acme-train.slice

# The first check of the second boot.
check_rebooted() {
	[ -s "$state/boot_id" ] || die "the first boot recorded no boot id"
	[ "$(cat "$state/boot_id")" != "$(cat /proc/sys/kernel/random/boot_id)" ] || die "this is still the same boot"
	make_nodes
}

check_limits_back() {
	systemctl start "$tenant"
	local cg
	cg=$(cgroup_of "$tenant")
	want "memory.max" "$(cat "$cgroot$cg/memory.max")" 268435456
	want "cpu.max" "$(cat "$cgroot$cg/cpu.max")" "50000 100000"
	want "pids.max" "$(cat "$cgroot$cg/pids.max")" 64
	want "the device policy" "$(property "$tenant" DevicePolicy)" closed
}

check_no_gpu() {
	systemctl start "$grant"
	want "device rules of the tenant" "$(property "$tenant" DeviceAllow)" ""
	local node
	for node in /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl; do
		want_open "$(cgroup_of "$grant")" $node denied
	done
	want_open / /dev/nvidia0 through
}
