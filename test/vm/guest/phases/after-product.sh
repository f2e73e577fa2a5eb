# After a boot: no tenant could open a GPU before the daemon started, the layout is restored, and a new job runs.
# checks: no_gpu_before limits_before services_up layout_back no_lease_left apply_is_empty run_again

. /opt/lab/guest/product.sh

check_no_gpu_before() {
	until_true 60 active lab-before.service
	want "answers written down" "$(wc -l </run/lab/before)" 10
	want "tenants that could open a GPU" "$(grep -v ' denied$' /run/lab/before || true)" ""
}

# Limits are persistent: they were in force before the daemon started.
check_limits_before() {
	want "limits before the daemon" "$(cat /run/lab/limits)" "gpushare-vision.slice memory.max $((256 << 20))
gpushare-vision.slice cpu.max 150000 100000
gpushare-vision.slice cpu.weight 200
gpushare-vision.slice pids.max 128
gpushare-speech.slice memory.max max
gpushare-speech.slice cpu.max max 100000
gpushare-speech.slice cpu.weight 100
gpushare-speech.slice pids.max 128"
}

check_services_up() {
	until_true 60 active gpushared.service
	active gpushare-thaw.service
	active gpusim.service
	want "restarts" "$(property gpushared.service NRestarts)" 0
}

check_layout_back() {
	until_true 60 layout_is_back
	until_true 60 idle
	want "the generation" "$(field .node.generation)" "$(cat "$state/generation")"
	want "GPUs that are not ok" "$(field '[.gpus[] | select(.state != "ok")] | length')" 0
}
idle() { # no operation is open, and no GPU is in a change
	[ "$(field '[.node.operation // empty, (.gpus[] | select(.state == "changing") | .uuid)] | length')" = 0 ]
}
layout_is_back() { [ "$(placements)" = "$(cat "$state/placements")" ]; }

check_no_lease_left() {
	want "leases" "$(field '.leases | length')" 0
}

check_apply_is_empty() {
	local out
	out=$(gpushare apply -f "$accepted")
	[[ $out == *"no changes"* ]] || die "the apply after the boot says: $out"
}

check_run_again() {
	start_job alice vision train --memory 1GiB --kernel 250ms --queue 2 --seconds 3000
	local cg
	cg=$(leaf_of "$pid")
	want_open "$cg" $root/dev/nvidia0 through
	want_open "$cg" $root/dev/nvidia1 denied
	want_moving "$pid"
}
