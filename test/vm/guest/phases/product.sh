# The shipped binaries and units on a real systemd: install, apply, run, freeze, daemon-reload, kill -9.
# checks: install units_verify security virtual_node daemon_starts worker_is_a_unit check_changes_nothing apply apply_again run mps walls limits freeze shares kill_daemon thaw_without_daemon restart stop_lease refusals watchdog

. /opt/lab/guest/product.sh

check_install() {
	bash /opt/lab/guest/snapshot.sh >"$state/before-install"
	cp -a /opt/lab/stage/. /
	mkdir -p /usr/local/lib/gpusim
	cp /opt/lab/gpusim/* /usr/local/lib/gpusim/
	# What runs at boot may not need /opt/lab, which is unpacked anew at about that time.
	install -m 0755 /opt/lab/guest/node/before.sh /opt/lab/guest/lib.sh /opt/lab/guest/node/node.yaml /usr/local/lib/gpusim/
	install -m 0644 /opt/lab/guest/node/gpusim.service /opt/lab/guest/node/lab-before.service /etc/systemd/system/
	echo "host_root: $root" >>/etc/gpushare/gpushared.yaml
	cat /opt/lab/guest/node/settings.yaml >>/etc/gpushare/gpushared.yaml
	mkdir -p /etc/systemd/system/gpushared.service.d
	printf '[Service]\nWatchdogSec=60s\n' >/etc/systemd/system/gpushared.service.d/lab.conf
	systemd-sysusers
	systemd-tmpfiles --create
	getent group gpushare-admin gpushare >/dev/null
	# Each of these would reload by itself, and a reload is seconds here.
	systemctl preset --no-reload gpushared.socket gpushared.service gpushare-thaw.service
	systemctl enable --no-reload --quiet gpusim.service lab-before.service
	systemctl daemon-reload
	want "gpushared.service" "$(systemctl is-enabled gpushared.service)" enabled
	want "gpushare-thaw.service" "$(systemctl is-enabled gpushare-thaw.service)" enabled
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
	want "the loader of modules" "$(cat /proc/sys/kernel/modprobe)" /bin/true
	want "GPUs of the virtual node" "$(truth | jq '.gpus | length')" 5
	want "opening a node outside any wall" "$(open_in / $root/dev/nvidia0)" through
}

check_daemon_starts() {
	local began
	began=$(uptime_ms)
	systemctl start gpushare-thaw.service gpushared.service
	note "start to ready: $(($(uptime_ms) - began)) ms"
	active gpushared.service
	active gpushare-thaw.service
	[[ $(field .node.adapter) == systemd* ]] || die "the adapter is $(field .node.adapter)"
	want "GPUs that the daemon sees" "$(field '.gpus | length')" 5
}

# The worker is a unit of its own, so that nothing of NVML is in the daemon's, and the walls of the daemon's unit are not
# in the way of the driver.
check_worker_is_a_unit() {
	local unit
	unit=$(unit_of "$(pgrep -f -o gpushare-nvml)")
	note "the worker lives in $unit"
	[ "$unit" != "$(cgroup_of gpushared.service)" ] || die "the NVML worker is a child of gpushared.service"
	want "processes in the daemon's unit" "$(wc -w <"$cgroot$(cgroup_of gpushared.service)/cgroup.procs")" 1
}

check_check_changes_nothing() {
	local writes
	writes=$(truth | jq .counters.writes)
	gpushare apply -f "$spec" --check --diff
	want "the generation" "$(field .node.generation)" 0
	want "calls that changed a GPU" "$(truth | jq .counters.writes)" "$writes"
	[ ! -d /sys/fs/cgroup/gpushare.slice/gpushare-vision.slice ] || die "--check made a slice"
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
	writes=$(truth | jq .counters.writes)
	out=$(gpushare apply -f "$spec")
	[[ $out == *"no changes"* ]] || die "the second apply says: $out"
	want "calls that changed a GPU" "$(truth | jq .counters.writes)" "$writes"
}

check_run() {
	start_job alice vision dev --memory 1GiB --kernel 10ms --queue 10 --seconds 3000
	local cg
	cg=$(leaf_of "$pid")
	case $cg in
	/gpushare.slice/gpushare-vision.slice/gpushare-vision-dev.slice/*.scope/run) ;;
	*) die "the job runs in $cg" ;;
	esac
	want "who runs it" "$(ps -o user= -p "$pid")" alice
	want "the lease's process" "$(lease_of vision dev | cut -d' ' -f2)" "$pid"
	start_job alice vision train --memory 1GiB --kernel 10ms --queue 10 --seconds 3000
}

# The MPS control daemon is a unit of its own: what happens to ours is nothing to it or to its clients.
check_mps() {
	start_job bob speech serve --memory 1GiB --kernel 10ms --queue 10 --seconds 3000
	mps_pid >"$state/mps"
	note "MPS control daemon: $(cat "$state/mps")"
	[[ $(unit_of "$(cut -d' ' -f1 "$state/mps")") != "$(cgroup_of gpushared.service)" ]] || die "it is a child of gpushared.service"
	want_open "$(leaf_of "$pid")" $root/dev/nvidia3 through
	want_open "$(leaf_of "$pid")" $root/dev/nvidia1 denied
}
mps_pid() { field '.gpus[] | select(.mode == "mps") | "\(.mps.pid) \(.mps.unit) \(.mps.state)"'; }

# Every node of the lease is let through, every other one is stopped; and so it stays over a daemon-reload.
check_walls() {
	walls_stand
	systemctl daemon-reload
	walls_stand
}
walls_stand() {
	local dev mig
	dev=$(leaf_of "$(job vision dev)")
	mig=$(leaf_of "$(job vision train)")
	want "GPUs and control open to the time-sliced lease" \
		"$(opens_in "$dev" $root/dev/nvidia{0,1,2,3,4,ctl} | xargs)" "denied through denied denied denied through"
	want "GPUs and control open to the MIG lease" \
		"$(opens_in "$mig" $root/dev/nvidia{0,1,2,3,4,ctl} | xargs)" "through denied denied denied denied through"
	# Of the capability nodes a MIG lease has its instance's and its compute instance's, and a time-sliced one none.
	# nvidia-cap1 and 2 are the node's own (configuring, monitoring), for administrators.
	local all
	all=$(ls $root/dev/nvidia-caps | wc -l)
	want "capability nodes and the MIG lease" "$(caps_in "$mig")" "$((all - 2)) denied 2 through"
	want "capability nodes and the time-sliced lease" "$(caps_in "$dev")" "$all denied"
}
caps_in() { opens_in "$1" $root/dev/nvidia-caps/nvidia-cap* | sort | uniq -c | xargs; }

check_limits() {
	local cg
	cg=$(cgroup_of gpushare-vision.slice)
	want "memory.max" "$(cat "$cgroot$cg/memory.max")" $((256 << 20))
	want "cpu.max" "$(cat "$cgroot$cg/cpu.max")" "150000 100000"
	want "cpu.weight" "$(cat "$cgroot$cg/cpu.weight")" 200
	want "pids.max" "$(cat "$cgroot$cg/pids.max")" 128
	want "limits that are not in force as wanted" \
		"$(field '[.tenants[] | .limits // [] | .[] | select((.in_force // "") == "")] | length')" 0
	# The memory limit acts: what goes over it dies, in the tenant's slice and not elsewhere.
	local out
	out=$(setpriv --reuid alice --regid alice --init-groups env -i PATH=/usr/bin:/bin \
		gpushare run -t vision --grant big -- dd if=/dev/zero of=/dev/null bs=400M count=1 2>&1 || true)
	[[ $out != *copied* ]] || die "400 MiB fitted into 256 MiB: $out"
	[ "$(sed -n 's/^oom_kill //p' "$cgroot$cg/memory.events")" -ge 1 ] || die "the job died, but not of its tenant's limit: $out"
	active gpushared.service
}

# The inner cgroup's freeze survives what systemd does, and the daemon knows nothing of it and breaks nothing.
check_freeze() {
	local cg
	cg=$(leaf_of "$(job vision train)")
	freeze "$cg"
	systemctl daemon-reload
	frozen "$cg" || die "daemon-reload thawed the lease"
	set_properties gpushare-vision.slice false 1 CPUWeight t 200
	frozen "$cg" || die "a property of the slice thawed the lease"
	gpushare status >/dev/null
	thaw "$cg"
	want_moving "$(job vision train)"
}

# Two tenants on one GPU: both are frozen and thawed by turns, and a daemon-reload does not trouble that.
check_shares() {
	start_job bob speech dev --memory 1GiB --kernel 10ms --queue 10 --seconds 3000
	local a b a0 b0 share
	a=$(job vision dev)
	b=$(job speech dev)
	a0=$(busy "$a")
	b0=$(busy "$b")
	systemctl daemon-reload
	sleep 20 # What is measured is this time itself.
	a0=$(($(busy "$a") - a0))
	b0=$(($(busy "$b") - b0))
	share=$((100 * a0 / (a0 + b0 + 1)))
	note "of 30 and 70 % of one GPU, in an emulator: $share and $((100 - share)) %"
	[ "$share" -ge 15 ] && [ "$share" -le 45 ] || die "the tenant with 30 % had $share % ($a0 ms, the other $b0 ms)"
}

check_kill_daemon() {
	local lease writes restarts
	lease=$(lease_of vision dev)
	writes=$(truth | jq .counters.writes)
	restarts=$(property gpushared.service NRestarts)
	kill -KILL "$(property gpushared.service MainPID)"
	until_true 30 restarted $((restarts + 1))
	want "the lease that the new daemon found" "$(lease_of vision dev)" "$lease"
	want "leases found" "$(field '.leases | length')" 4
	want "calls that changed a GPU" "$(truth | jq .counters.writes)" "$writes"
	want "the placements" "$(placements)" "$(cat "$state/placements")"
	want_moving "$(job vision dev)"
	want_moving "$(job speech dev)"
	want_moving "$(job vision train)"
	want_moving "$(job speech serve)"
	want "the MPS control daemon" "$(mps_pid)" "$(cat "$state/mps")"
	walls_stand
}
restarted() { [ "$(property gpushared.service NRestarts)" = "$1" ] && active gpushared.service && answers; }

# Killed for good, while two leases take turns: nobody stays frozen, because thawing is another unit's business.
check_thaw_without_daemon() {
	trap daemon_again EXIT
	systemctl mask --quiet --runtime gpushared.service gpushared.socket
	local a b main began
	a=$(leaf_of "$(job vision dev)")
	b=$(leaf_of "$(job speech dev)")
	main=$(property gpushared.service MainPID)
	until_true 20 either_frozen "$a" "$b"
	kill -KILL "$main"
	began=$(uptime_ms)
	until_true 10 thawed "$a"
	until_true 10 thawed "$b"
	note "nobody is frozen $(($(uptime_ms) - began)) ms after the daemon was killed with one of two frozen"
	until_true 10 down gpushared.service
	want_moving "$(job vision dev)"
	want_moving "$(job speech dev)"
	walls_stand
	local code=0
	gpushare status >/dev/null 2>&1 || code=$?
	want "the exit code of gpushare without a daemon" "$code" 3
	daemon_again
	want "leases found" "$(field '.leases | length')" 4
}
either_frozen() { frozen "$1" || frozen "$2"; }
daemon_again() {
	systemctl unmask --quiet --runtime gpushared.service gpushared.socket
	systemctl reset-failed gpushared.service gpushared.socket 2>/dev/null || true
	systemctl start gpushared.service
}
down() { [ "$(property "$1" MainPID)" = 0 ]; }

# An upgrade is a restart: nobody notices.
check_restart() {
	local lease
	lease=$(lease_of speech dev)
	systemctl restart gpushared.service
	want "the lease that the new daemon found" "$(lease_of speech dev)" "$lease"
	systemctl reload gpushared.service
	active gpushared.service
	want_moving "$(job speech dev)"
	want "the MPS control daemon" "$(mps_pid)" "$(cat "$state/mps")"
}

check_stop_lease() {
	local id
	id=$(lease_of speech dev | cut -d' ' -f1)
	gpushare lease stop "$id"
	until_true 20 gone "$(job speech dev)"
	until_true 10 no_lease "$id"
	[ -d "/proc/$(job vision dev)" ] || die "its neighbour is gone too"
}
no_lease() { [ "$(field "[.leases[] | select(.id == \"$1\")] | length")" = 0 ]; }

check_refusals() {
	local code=0 out
	out=$(setpriv --reuid carol --regid carol --init-groups gpushare run -t vision -- true 2>&1) || code=$?
	want "the exit code for who is no member" "$code" 125
	note "$out"
	code=0
	out=$(setpriv --reuid bob --regid bob --init-groups gpushare apply -f "$spec" 2>&1) || code=$?
	want "the exit code for who may not apply" "$code" 4
	note "$out"
}

# The lab's watchdog is impatient (see install), and by now there were minutes in which it could have lost patience.
check_watchdog() {
	local bitten
	want "the watchdog" "$(property gpushared.service WatchdogUSec)" 1min
	bitten=$(journalctl -b -u gpushared.service --no-pager | grep -c "Watchdog timeout" || true)
	want "watchdog timeouts" "$bitten" 0
}
