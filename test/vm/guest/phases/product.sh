# The product on a real systemd: device rules and limits by their effect, freezing, shares, kill -9 and restarts.
# checks: isolation limits freeze shares kill_daemon thaw_without_daemon restart stop_lease refusals watchdog

. /opt/lab/guest/product.sh

# Every device node of the lease can be opened and no other, also after a daemon-reload.
check_isolation() {
	isolation_active
	systemctl daemon-reload
	isolation_active
}
isolation_active() {
	local dev mig
	dev=$(leaf_of "$(job vision dev)")
	mig=$(leaf_of "$(job vision train)")
	want "GPUs and control open to the time-sliced lease" \
		"$(opens_in "$dev" $root/dev/nvidia{0,1,2,3,4,ctl} | xargs)" "denied through denied denied denied through"
	want "GPUs and control open to the MIG lease" \
		"$(opens_in "$mig" $root/dev/nvidia{0,1,2,3,4,ctl} | xargs)" "through denied denied denied denied through"
	# A MIG lease opens the capability nodes of its instance and its compute instance, a time-sliced lease none.
	# nvidia-cap1 and nvidia-cap2 (configure, monitor) are for administrators.
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
	want "limits that are not in force" \
		"$(field '[.tenants[] | .limits // [] | .[] | select((.in_force // "") == "")] | length')" 0
	# A process that exceeds the memory limit is killed, in the slice of the tenant and not elsewhere.
	local out
	out=$(setpriv --reuid alice --regid alice --init-groups env -i PATH=/usr/bin:/bin \
		gpushare run -t vision --grant big -- dd if=/dev/zero of=/dev/null bs=400M count=1 2>&1 || true)
	[[ $out != *copied* ]] || die "400 MiB fitted into 256 MiB: $out"
	[ "$(sed -n 's/^oom_kill //p' "$cgroot$cg/memory.events")" -ge 1 ] || die "the job died, but not by the limit of its tenant: $out"
	active gpushared.service
}

# The freeze of the inner cgroup survives systemd and the daemon, which did not make it.
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

# Two tenants on one GPU are frozen and thawed alternately, also during a daemon-reload.
check_shares() {
	start_job bob speech dev --memory 1GiB --kernel 50ms --queue 2 --seconds 3000
	local a b a0 b0 a1 b1 share
	a=$(job vision dev)
	b=$(job speech dev)
	read -r a0 b0 <<<"$(busy_of "$a" "$b" | xargs)"
	systemctl daemon-reload
	sleep 15 # The measured period.
	read -r a1 b1 <<<"$(busy_of "$a" "$b" | xargs)"
	a0=$((a1 - a0))
	b0=$((b1 - b0))
	share=$((100 * a0 / (a0 + b0 + 1)))
	note "of 30 and 70 % of one GPU, in an emulator: $share and $((100 - share)) %"
	[ "$share" -ge 15 ] && [ "$share" -le 45 ] || die "the tenant with 30 % had $share % ($a0 ms, the other $b0 ms)"
}

check_kill_daemon() {
	local lease writes restarts
	lease=$(lease_of vision dev)
	writes=$(truth | gojq .counters.writes)
	restarts=$(property gpushared.service NRestarts)
	kill -KILL "$(property gpushared.service MainPID)"
	until_true 30 restarted $((restarts + 1))
	want "the lease that the new daemon found" "$(lease_of vision dev)" "$lease"
	want "leases found" "$(field '.leases | length')" 4
	want "calls that changed a GPU" "$(truth | gojq .counters.writes)" "$writes"
	want "the placements" "$(placements)" "$(cat "$state/placements")"
	want_moving "$(job vision dev)" "$(job speech dev)" "$(job vision train)" "$(job speech serve)"
	want "the MPS control daemon" "$(mps_pid)" "$(cat "$state/mps")"
	isolation_active
}
restarted() { [ "$(property gpushared.service NRestarts)" = "$1" ] && active gpushared.service && answers; }

# The daemon is killed and not restarted while two leases are time-sliced: gpushare-thaw.service thaws both.
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
	note "both leases are thawed $(($(uptime_ms) - began)) ms after the daemon was killed with one of two frozen"
	until_true 10 down gpushared.service
	want_moving "$(job vision dev)" "$(job speech dev)"
	isolation_active
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
	systemctl is-active --quiet gpushared.service && return
	systemctl stop gpushared.socket # A unit that was masked while it ran has no descriptor left.
	systemctl start gpushared.socket gpushared.service
}
down() { [ "$(property "$1" MainPID)" = 0 ]; }

# An upgrade restarts the daemon: leases and MPS are not affected.
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
	until_true 20 ended "$(job speech dev)"
	until_true 10 no_lease "$id"
	[ -d "/proc/$(job vision dev)" ] || die "the lease of another tenant was stopped too"
}
no_lease() { [ "$(field "[.leases[] | select(.id == \"$1\")] | length")" = 0 ]; }

check_refusals() {
	local code=0 out
	out=$(setpriv --reuid carol --regid carol --init-groups gpushare run -t vision -- true 2>&1) || code=$?
	want "the exit code of run for a user who is not a member" "$code" 125
	note "$out"
	code=0
	out=$(setpriv --reuid bob --regid bob --init-groups gpushare apply -f "$spec" 2>&1) || code=$?
	want "the exit code of apply for a tenant member" "$code" 4
	note "$out"
}

# WatchdogSec is short here (see install), and the daemon has run for minutes.
check_watchdog() {
	local timeouts
	want "the watchdog" "$(property gpushared.service WatchdogUSec)" 1min
	timeouts=$(journalctl -b -u gpushared.service --no-pager | grep -c "Watchdog timeout" || true)
	want "watchdog timeouts" "$timeouts" 0
}
