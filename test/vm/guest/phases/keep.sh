# The last phase of a boot that is followed by another: it records what the next one compares, and leaves a frozen lease for
# the power-off.
# checks: product boot_id frozen_lease

. /opt/lab/guest/product.sh

check_product() {
	field .node.generation >"$state/generation"
	want "leases before the power-off" "$(field '.leases | length')" 3
}

check_boot_id() { cat /proc/sys/kernel/random/boot_id >"$state/boot_id"; }

# The power goes off with a frozen lease whose job handles SIGTERM.
check_frozen_lease() {
	start_lease lab-frozen.scope lab-acme-train.slice "/dev/nvidia0" 10 "$handles_term"
	freeze "$leaf"
	# Then the console says which unit the power-off waits for.
	systemctl log-target console
}
