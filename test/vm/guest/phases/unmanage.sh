# The node is unmanaged, and nothing of gpushare is left. It is the last phase that needs the spec.
# checks: refused_in_use unmanage nothing_is_left without_the_daemon apply_again unmanage_all

. /opt/lab/guest/product.sh

# left_over lists units, cgroups and CDI files of gpushare, without those of the package, of the NVML worker and of the front: the daemon
# runs.
left_over() {
	find /etc/systemd/system.control /run/systemd/system.control /run/systemd/transient -name '*gpushare*' ! -name '*nvml*' ! -name 'gpushare-front-*' 2>/dev/null || true
	systemctl list-units --all --no-legend --plain 'gpushare-*.slice' 'gpushare-*.scope' 'gpushare-mps-*' | awk '$3 == "active" { print $1 }'
	find $cgroot/gpushare.slice -mindepth 1 -type d ! -name 'gpushare-nvml-*' 2>/dev/null || true
	find /run/cdi /etc/cdi -name '*gpushare*' 2>/dev/null || true
}

check_refused_in_use() {
	local code=0 out id
	start_job bob speech dev --memory 1GiB --kernel 50ms --queue 2 --seconds 3000
	id=$(lease_of speech dev | cut -d' ' -f1)
	out=$(gpushare unmanage 2>&1) || code=$?
	want "the exit code while a lease runs" "$code" 5
	[[ $out == *"$id"* ]] || die "it does not name $id: $out"
	! gpushare unmanage --check || die "unmanage --check reports that nothing is active"
	[ -d "/proc/$(job speech dev)" ] || die "the job has ended"
	limit=$(cat "$cgroot/gpushare.slice/gpushare-speech.slice/pids.max")
	want "its limit" "$limit" 128
}

check_unmanage() {
	placements >"$state/placements-before-unmanage"
	gpushare unmanage --force
	until_true 20 ended "$(job speech dev)"
	want "instances" "$(placements)" "$(cat "$state/placements-before-unmanage")"
	want "enforce" "$(field .node.enforce)" observe
	[ "$(field .node.unmanaged.by)" = root ] || die "status does not report the user who unmanaged it"
}

check_nothing_is_left() {
	want "what is left" "$(left_over)" ""
	# Every login can open every GPU, as without gpushare.
	want_open / $root/dev/nvidia1 through
	systemctl daemon-reload
	want "what is left after a reload" "$(left_over)" ""
	gpushare config reload
	want "what is left after a converge" "$(left_over)" ""
	gpushare unmanage --check
}

check_without_the_daemon() {
	systemctl stop gpushared.service gpushared.socket
	gpushare unmanage --check # It reads the state that the daemon left.
	systemctl start gpushared.socket gpushared.service
}

check_apply_again() {
	gpushare apply -f "$spec"
	want "its limit" "$(cat "$cgroot/gpushare.slice/gpushare-speech.slice/pids.max")" 128
	want "instances" "$(placements)" "$(cat "$state/placements-before-unmanage")"
}

check_unmanage_all() {
	gpushare unmanage --all --force
	want "instances" "$(placements)" ""
	want "what is left" "$(left_over)" ""
	local code=0
	gpushare get >/dev/null 2>&1 || code=$?
	want "the exit code of get without a spec" "$code" 1
	systemctl restart gpushared.service
	want "what is left after a restart" "$(left_over)" ""
	want "enforce" "$(field .node.enforce)" observe
}
