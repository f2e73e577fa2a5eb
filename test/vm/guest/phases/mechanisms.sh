# The mechanisms of systemd and the kernel that gpushare relies on, used by hand, so that a change of their behaviour is found.
# checks: nodes slice_limits lease device_rules both_rules freeze_survives rules_while_reloading stop_frozen kill_frozen natural_end exec_in_place relax escape

tenant=lab-acme.slice
grant=lab-acme-train.slice

check_nodes() {
	make_nodes
	want_open / /dev/nvidia0 through
}

# Limits set on a slice that does not exist yet are in force from its start. A slice of StartTransientUnit loses them when it
# stops.
check_slice_limits() {
	set_properties "$tenant" false 4 MemoryMax t 268435456 CPUQuotaPerSecUSec t 500000 TasksMax t 64 DevicePolicy s closed
	set_properties "$tenant" true 1 DeviceAllow "a(ss)" 2 /dev/nvidia0 rw /dev/nvidia1 rw
	systemctl start "$tenant"
	local cg
	cg=$(cgroup_of "$tenant")
	want "memory.max" "$(cat "$cgroot$cg/memory.max")" 268435456
	want "cpu.max" "$(cat "$cgroot$cg/cpu.max")" "50000 100000"
	want "pids.max" "$(cat "$cgroot$cg/pids.max")" 64
	systemctl stop "$tenant"
	systemctl start "$tenant"
	want "memory.max after a stop and a start" "$(cat "$cgroot$cg/memory.max")" 268435456
}

check_lease() {
	start_lease lab-lease.scope "$grant" "/dev/nvidia0"
	want "owner of run" "$(stat -c %U "$cgroot$leaf")" root
	want "controllers in run" "$(cat "$cgroot$leaf/cgroup.controllers" | tr ' ' '\n' | grep -cE '^(cpu|memory)$' || true)" \
		"$(cat "$cgroot$leaf/../cgroup.subtree_control" | tr ' ' '\n' | grep -cE '^(cpu|memory)$' || true)"
	case $leaf in /lab.slice/lab-acme.slice/lab-acme-train.slice/lab-lease.scope/run) ;; *) die "the lease is at $leaf" ;; esac
	end_lease "$pid" "$leaf"
}

check_device_rules() {
	start_lease lab-rules.scope "$grant" "/dev/nvidia0 /dev/nvidiactl"
	# The slice of the tenant allows 0 and 1: nvidiactl is denied there, and 1 is denied here.
	want_open "$leaf" /dev/nvidia0 through
	want_open "$leaf" /dev/nvidia1 denied
	want_open "$leaf" /dev/nvidia2 denied
	want_open "$leaf" /dev/nvidiactl denied
	[ "$(open_in "$leaf" /dev/null)" = opened ] || die "the standard devices are closed too"
	end_lease "$pid" "$leaf"
}

check_both_rules() {
	start_lease lab-both.scope "$grant" "/dev/nvidia0"
	set_properties lab-both.scope true 2 DeviceAllow "a(ss)" 0 DeviceAllow "a(ss)" 1 /dev/nvidia1 rw
	want_open "$leaf" /dev/nvidia0 denied
	want_open "$leaf" /dev/nvidia1 through
	set_properties "$tenant" true 2 DeviceAllow "a(ss)" 0 DeviceAllow "a(ss)" 1 /dev/nvidia0 rw
	want_open "$leaf" /dev/nvidia1 denied
	set_properties "$tenant" true 2 DeviceAllow "a(ss)" 0 DeviceAllow "a(ss)" 2 /dev/nvidia0 rw /dev/nvidia1 rw
	want_open "$leaf" /dev/nvidia1 through
	end_lease "$pid" "$leaf"
}

# systemd neither sees nor undoes the freeze of the inner cgroup.
check_freeze_survives() {
	start_lease lab-freeze.scope "$grant" "/dev/nvidia0"
	freeze "$leaf"
	systemctl daemon-reload
	frozen "$leaf" || die "daemon-reload thawed the lease"
	set_properties lab-freeze.scope true 1 DeviceAllow "a(ss)" 1 /dev/nvidia1 rw
	frozen "$leaf" || die "setting a property of the scope thawed the lease"
	set_properties "$grant" true 1 CPUWeight t 50
	frozen "$leaf" || die "setting a property of the slice thawed the lease"
	systemctl daemon-reexec
	frozen "$leaf" || die "daemon-reexec thawed the lease"
	want "what systemd says" "$(property lab-freeze.scope SubState)" running
	want "the freezer state that systemd shows" "$(property lab-freeze.scope FreezerState)" running
	want "memory.max" "$(cat "$cgroot$(cgroup_of "$tenant")/memory.max")" 268435456
	thaw "$leaf"
	[ -d "/proc/$pid" ] || die "the process did not survive"
	end_lease "$pid" "$leaf"
}

# Every single open has the right result while rules are rewritten and systemd reloads.
check_rules_while_reloading() {
	start_lease lab-opens.scope "$grant" "/dev/nvidia0"
	local out=/run/lab/opens opener i
	rm -f $out*
	bash -c 'echo $$ >"$1/cgroup.procs" && exec bash /opt/lab/guest/opener.sh /dev/nvidia0 /dev/nvidia2 "$2" 0.02' place "$cgroot$leaf" $out &
	opener=$!
	until_true 10 test -s $out.rounds
	for i in 1 2; do
		systemctl daemon-reload
		set_properties lab-opens.scope true 2 DeviceAllow "a(ss)" 0 DeviceAllow "a(ss)" 2 /dev/nvidia0 rw /dev/nvidia$((i % 2)) rw
		set_properties "$tenant" true 1 CPUWeight t $((100 + i))
	done
	systemctl daemon-reexec
	touch $out.stop
	wait "$opener"
	want "opens of the allowed node that succeeded" "$(grep -c 'nvidia0: No such device or address' $out)" "$(cat $out.rounds)"
	want "opens of the denied node that were denied" "$(grep -c 'nvidia2: Operation not permitted' $out)" "$(cat $out.rounds)"
	want "lines about opens" "$(wc -l <$out)" $((2 * $(cat $out.rounds)))
	note "$(cat $out.rounds) opens succeeded and as many were denied during reloads"
	end_lease "$pid" "$leaf"
}

# Stopping a frozen lease whose job handles SIGTERM takes the whole stop timeout and ends in SIGKILL, so
# the daemon thaws it first. SIGTERM ends a job without a handler even while it is frozen.
check_stop_frozen() {
	local default_ms frozen_ms thawed_ms
	start_lease lab-stop0.scope "$grant" "/dev/nvidia0" 30
	freeze "$leaf"
	default_ms=$(stop_ms lab-stop0.scope)
	ended "$pid" || die "the frozen process outlived its scope"
	start_lease lab-stop1.scope "$grant" "/dev/nvidia0" 3 "$handles_term"
	freeze "$leaf"
	frozen_ms=$(stop_ms lab-stop1.scope)
	ended "$pid" || die "the frozen process outlived its scope"
	start_lease lab-stop2.scope "$grant" "/dev/nvidia0" 30 "$handles_term"
	freeze "$leaf"
	thaw "$leaf"
	thawed_ms=$(stop_ms lab-stop2.scope)
	ended "$pid" || die "the thawed process outlived its scope"
	note "stop: frozen without a handler $default_ms ms, frozen with one and 3 s of timeout $frozen_ms ms, thawed first $thawed_ms ms"
	[ "$default_ms" -lt 10000 ] || die "a frozen job without a handler took $default_ms ms to stop"
	[ "$frozen_ms" -ge 2900 ] || die "a frozen job stopped in $frozen_ms ms: this is no longer a reason to thaw first"
	[ "$thawed_ms" -lt 10000 ] || die "a thawed job took $thawed_ms ms to stop"
}
stop_ms() {
	local began
	began=$(uptime_ms)
	systemctl stop "$1"
	echo $(($(uptime_ms) - began))
}

check_kill_frozen() {
	start_lease lab-kill.scope "$grant" "/dev/nvidia0"
	freeze "$leaf"
	echo 1 >"$cgroot$leaf/cgroup.kill"
	until_true 5 ended "$pid"
	until_true 5 no_unit lab-kill.scope
}
no_unit() { [ "$(property "$1" LoadState)" = not-found ] || [ "$(property "$1" ActiveState)" = inactive ]; }

check_natural_end() {
	start_lease lab-end.scope "$grant" "/dev/nvidia0"
	kill -TERM "$pid"
	until_true 5 ended "$pid"
	until_true 5 no_unit lab-end.scope
	until_true 5 test ! -d "$cgroot$leaf"
}

check_exec_in_place() {
	rm -f /run/lab/go
	mkfifo /run/lab/go
	bash -c 'read -r _ </run/lab/go; exec sleep 600' &
	local shell=$!
	disown
	busctl call --quiet $manager StartTransientUnit "ssa(sv)a(sa(sv))" lab-exec.scope fail 4 \
		PIDs au 1 "$shell" Slice s "$grant" Delegate b true CollectMode s inactive-or-failed 0
	until_true 10 in_unit "$shell" lab-exec.scope
	leaf=$(cgroup_of lab-exec.scope)/run
	mkdir "$cgroot$leaf"
	echo "$shell" >"$cgroot$leaf/cgroup.procs"
	echo go >/run/lab/go
	until_true 5 is_command "$shell" sleep
	want "the cgroup after exec" "$(unit_of "$shell")" "$leaf"
	want "the unit after exec" "$(property lab-exec.scope SubState)" running
	end_lease "$shell" "$leaf"
}
is_command() { [ "$(cat "/proc/$1/comm")" = "$2" ]; }

# From closed back to auto: the program stays attached although systemd shows auto.
check_relax() {
	start_lease lab-relax.scope "$grant" "/dev/nvidia0"
	want_open "$leaf" /dev/nvidia1 denied
	set_properties lab-relax.scope true 2 DeviceAllow "a(ss)" 0 DevicePolicy s auto
	want "the policy that systemd shows" "$(property lab-relax.scope DevicePolicy)" auto
	note "after closed and back to auto, /dev/nvidia1 is $(open_in "$leaf" /dev/nvidia1)"
	set_properties lab-relax.scope true 1 DeviceAllow "a(ss)" 2 "char-*" rwm "block-*" rwm
	want_open "$leaf" /dev/nvidia1 through
	end_lease "$pid" "$leaf"
}

# A tenant with a user manager can leave a lease: members are identified by process, not only by cgroup.
check_escape() {
	loginctl enable-linger alice
	until_true 30 test -S /run/user/2001/bus
	start_lease lab-left.scope "$grant" "/dev/nvidia0"
	freeze "$leaf"
	setpriv --reuid alice --regid alice --clear-groups env XDG_RUNTIME_DIR=/run/user/2001 \
		DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/2001/bus \
		busctl --user call --quiet $manager StartTransientUnit "ssa(sv)a(sa(sv))" lab-escape.scope fail 1 PIDs au 1 "$pid" 0 ||
		die "the user manager refused: leases can no longer be left this way"
	until_true 10 left "$pid" "$leaf"
	note "the process went to $(unit_of "$pid") and is no longer frozen"
	kill -KILL "$pid"
	until_true 5 ended "$pid"
	loginctl disable-linger alice
}
left() { [ "$(unit_of "$1")" != "$2" ]; }
