# The last of a boot that another follows: what the next one compares with, and a frozen lease for the power-off.
# checks: product marks frozen_lease

. /opt/lab/guest/product.sh

check_product() {
	field .node.generation >"$state/generation"
	want "leases that the power takes" "$(field '.leases | length')" 3
}

check_marks() { cat /proc/sys/kernel/random/boot_id >"$state/boot_id"; }

# The power goes off with a frozen lease whose job would have a say in its end.
check_frozen_lease() {
	start_lease lab-frozen.scope lab-acme-train.slice "/dev/nvidia0" 10 "$polite"
	freeze "$leaf"
}
