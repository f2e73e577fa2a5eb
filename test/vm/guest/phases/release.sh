# The node is given back, and nothing of ours is left. It is the last phase that needs the spec.
# checks: refused_in_use release nothing_is_left without_the_daemon apply_again release_all

. /opt/lab/guest/product.sh

# ours lists whatever systemd still has of us, but for what the package ships and the NVML worker.
ours() {
	find /etc/systemd/system.control /run/systemd/system.control /run/systemd/transient -name '*gpushare*' ! -name '*nvml*' 2>/dev/null || true
	systemctl list-units --all --no-legend --plain 'gpushare-*.slice' 'gpushare-*.scope' 'gpushare-mps-*' | awk '$3 == "active" { print $1 }'
	find $cgroot/gpushare.slice -mindepth 1 -type d ! -name 'gpushare-nvml-*' 2>/dev/null || true
	find /run/cdi /etc/cdi -name '*gpushare*' 2>/dev/null || true
}

check_refused_in_use() {
	local code=0 out id
	start_job bob speech dev --memory 1GiB --kernel 50ms --queue 2 --seconds 3000
	id=$(lease_of speech dev | cut -d' ' -f1)
	out=$(gpushare unmanage 2>&1) || code=$?
	want "the exit code while a lease lives" "$code" 5
	[[ $out == *"$id"* ]] || die "it does not name $id: $out"
	! gpushare unmanage --check || die "nothing is said to stand"
	[ -d "/proc/$(job speech dev)" ] || die "the job is gone"
	walls=$(cat "$cgroot/gpushare.slice/gpushare-speech.slice/pids.max")
	want "its limit" "$walls" 128
}

check_release() {
	placements >"$state/placements-before-release"
	gpushare unmanage --force
	until_true 20 gone "$(job speech dev)"
	want "instances" "$(placements)" "$(cat "$state/placements-before-release")"
	want "enforce" "$(field .node.enforce)" observe
	[ "$(field .node.released.who)" = root ] || die "status does not say who gave it back"
}

check_nothing_is_left() {
	want "what is left" "$(ours)" ""
	# Whoever logs in now can open everything, as before us.
	want_open / $root/dev/nvidia1 through
	systemctl daemon-reload
	want "what is left after a reload" "$(ours)" ""
	gpushare config reload
	want "what is left after another look" "$(ours)" ""
	gpushare unmanage --check
}

check_without_the_daemon() {
	systemctl stop gpushared.service gpushared.socket
	gpushare unmanage --check # By the state that it left.
	systemctl start gpushared.socket gpushared.service
}

check_apply_again() {
	gpushare apply -f "$spec"
	want "its limit" "$(cat "$cgroot/gpushare.slice/gpushare-speech.slice/pids.max")" 128
	want "instances" "$(placements)" "$(cat "$state/placements-before-release")"
}

check_release_all() {
	gpushare unmanage --all --force
	want "instances" "$(placements)" ""
	want "what is left" "$(ours)" ""
	local code=0
	gpushare get >/dev/null 2>&1 || code=$?
	want "the exit code of get without a spec" "$code" 1
	systemctl restart gpushared.service
	want "what is left after a restart" "$(ours)" ""
	want "enforce" "$(field .node.enforce)" observe
}
