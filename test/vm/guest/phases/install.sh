# The package is installed on a real systemd, where it observes, a spec is applied, and jobs run. Later phases build upon
# this one: it leaves vision (alice) with jobs of dev and train, and speech (bob) with one of serve.
# checks: install units_verify security virtual_node daemon_starts worker_is_a_unit check_changes_nothing apply apply_again run mps

. /opt/lab/guest/product.sh

check_install() {
	install_lab_profiles
	bash /opt/lab/guest/snapshot.sh >"$state/before-install"
	local began unit
	began=$(uptime_ms)
	dpkg -i /opt/lab/packages/gpushare.deb >/run/lab/dpkg 2>&1 || die "$(cat /run/lab/dpkg)"
	note "dpkg -i: $(($(uptime_ms) - began)) ms; $(tail -n 1 /run/lab/dpkg)"
	getent group gpushare-admin gpushare >/dev/null
	for unit in gpushared.socket gpushared.service gpushare-thaw.service gpushare-login-filter.service; do
		want "$unit" "$(systemctl is-enabled "$unit")" enabled
		active "$unit" || die "$unit is not active"
	done
	# Day one: nothing is in force.
	want "enforce" "$(field .node.enforce)" observe
	[ ! -d /sys/fs/cgroup/gpushare.slice/gpushare-vision.slice ] || die "a slice exists"
	install -m 0644 /opt/lab/guest/node/lab-before.service /etc/systemd/system/
	use_virtual_gpus lab-before.service
}

check_units_verify() {
	local out
	out=$(systemd-analyze verify --man=no --recursive-errors=no $(cd /usr/lib/systemd/system && ls -d gpushare*) 2>&1) || true
	want "what systemd-analyze verify says" "$out" ""
	gpushared -check-settings
}

# The scores that are committed, by this systemd.
check_security() {
	local out
	out=$(/opt/lab/packaging/security.sh /opt/lab/packaging/security-scores 2>&1) || die "${out//$'\n'/; }"
	note "$out"
}

check_virtual_node() {
	systemctl start gpusim.service
	want "the loader of modules" "$(cat /proc/sys/kernel/modprobe)" ""
	want "GPUs of the virtual node" "$(truth | gojq '.gpus | length')" 5
	want "opening a node outside every slice" "$(open_in / $root/dev/nvidia0)" through
}

check_daemon_starts() {
	local began
	began=$(uptime_ms)
	systemctl start gpushare-thaw.service gpushared.service
	note "start to ready: $(($(uptime_ms) - began)) ms"
	active gpushared.service
	active gpushare-thaw.service
	want "the standard input of the daemon" "$(readlink "/proc/$(property gpushared.service MainPID)/fd/0")" /dev/kmsg
	[[ $(field .node.adapter) == systemd* ]] || die "the adapter is $(field .node.adapter)"
	want "GPUs that the daemon sees" "$(field '.gpus | length')" 5
}

# The worker is a unit of its own: NVML is not loaded into the daemon, and the sandbox of gpushared.service does not restrict
# the driver.
check_worker_is_a_unit() {
	local unit
	unit=$(unit_of "$(pgrep -f -o gpushare-nvml)")
	note "the worker runs in $unit"
	[ "$unit" != "$(cgroup_of gpushared.service)" ] || die "the NVML worker is a child of gpushared.service"
	want "processes in the daemon's unit" "$(wc -w <"$cgroot$(cgroup_of gpushared.service)/cgroup.procs")" 1
}

check_check_changes_nothing() {
	local writes
	writes=$(truth | gojq .counters.writes)
	gpushare apply -f "$spec" --check --diff
	want "the generation" "$(field .node.generation)" 0
	want "calls that changed a GPU" "$(truth | gojq .counters.writes)" "$writes"
	[ ! -d /sys/fs/cgroup/gpushare.slice/gpushare-vision.slice ] || die "--check created a slice"
}

check_apply() {
	gpushare apply -f "$spec"
	want "GPUs that are not ok" "$(field '[.gpus[] | select(.state != "ok")] | length')" 0
	want "conditions" "$(field '[.node.conditions // [] | .[] | select(.kind != "not-enforced") | .message] | join("; ")')" ""
	want "instances" "$(placements | awk '{ print $2 }' | sort | xargs)" "1g.10gb 1g.10gb 2g.20gb 3g.40gb"
	placements >"$state/placements"
	note "$(tr '\n' ';' <"$state/placements")"
}

check_apply_again() {
	local writes out
	writes=$(truth | gojq .counters.writes)
	out=$(gpushare apply -f "$spec")
	[[ $out == *"no changes"* ]] || die "the second apply says: $out"
	want "calls that changed a GPU" "$(truth | gojq .counters.writes)" "$writes"
}

check_run() {
	# No figures of the product: they are those of the emulator, which translates each program again.
	note "start of a command, medians of 9: alone $(median_start env) ms, by systemd-run --scope $(median_start systemd-run --quiet --scope) ms, after gpushare run without a request $(median_start without_request) ms, by gpushare run $(median_start gpushare run -q -t vision --grant dev --) ms"
	start_job alice vision dev --memory 1GiB --kernel 50ms --queue 2 --seconds 3000
	local cg
	cg=$(leaf_of "$pid")
	case $cg in
	/gpushare.slice/gpushare-vision.slice/gpushare-vision-dev.slice/*.scope/run) ;;
	*) die "the job runs in $cg" ;;
	esac
	want "its user" "$(ps -o user= -p "$pid")" alice
	want "the lease's process" "$(lease_of vision dev | cut -d' ' -f2)" "$pid"
	start_job alice vision train --memory 1GiB --kernel 250ms --queue 2 --seconds 3000
}

# median_start COMMAND... prints after how many milliseconds a program that COMMAND starts runs: the middle of nine.
median_start() {
	local i began
	for i in 1 2 3 4 5 6 7 8 9; do
		began=${EPOCHREALTIME/./}
		echo $((($("$@" date +%s%6N) - began) / 1000))
	done | sort -n | sed -n 5p
}
without_request() { # starts gpushare run, which requests nothing without a command, and then a program
	gpushare run >/dev/null 2>&1 || "$@"
}

# The MPS control daemon is a unit of its own: it and its clients outlive a stop of gpushared.service.
check_mps() {
	start_job bob speech serve --memory 1GiB --kernel 250ms --queue 2 --seconds 3000
	mps_pid >"$state/mps"
	note "MPS control daemon: $(cat "$state/mps")"
	[[ $(unit_of "$(cut -d' ' -f1 "$state/mps")") != "$(cgroup_of gpushared.service)" ]] || die "it is a child of gpushared.service"
	want "the limit of open files of the MPS control daemon" "$(awk '/^Max open files/ { print $4, $5 }' "/proc/$(cut -d' ' -f1 "$state/mps")/limits")" "16384 16384"
	want_open "$(leaf_of "$pid")" $root/dev/nvidia3 through
	want_open "$(leaf_of "$pid")" $root/dev/nvidia1 denied
}
