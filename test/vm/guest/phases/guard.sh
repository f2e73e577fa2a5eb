# Logins are kept from managed GPUs: new ones and old ones, over all that systemd does, but for a user's lease.
# checks: guard_off guard_plan guard_on guard_again guard_old_login guard_reload guard_reexec guard_all_gone guard_daemon guard_lease guard_unit guard_mended

. /opt/lab/guest/product.sh
. /opt/lab/guest/guard.sh

# Who lingers logs in faster.
check_guard_off() {
	loginctl enable-linger alice bob
	no_guard || die "a login cannot open a GPU although the guard is off: $(login_opens alice $root/dev/nvidia1)"
}

check_guard_plan() {
	make_guarded
	local out
	out=$(gpushare apply -f "$guarded" --check)
	[[ $out == *"to logins ($logins)"* ]] || die "the plan does not show the guard: $out"
	no_guard || die "--check put the guard on"
}

# A login that is there before the guard: what it has open it keeps, and it opens nothing more.
check_guard_on() {
	# It says itself who it is: other sleeps of bob's may be left of earlier phases, and end by themselves.
	rm -f "$state/old-login"
	runuser -l bob -c 'echo $$; exec sleep 3000' </dev/null >"$state/old-login" 2>/dev/null &
	disown
	until_true 90 grep -qs . "$state/old-login"
	[[ $(unit_of "$(cat "$state/old-login")") == $logins/* ]] || die "the login is in $(unit_of "$(cat "$state/old-login")")"
	gpushare apply -f "$guarded"
	guard_stands
}

check_guard_again() {
	local out
	want "conditions of the guard" "$(guard_conditions)" ""
	out=$(gpushare apply -f "$guarded")
	[[ $out == *"no changes"* ]] || die "the second apply says: $out"
	want "opening GPU 1 in a login of root" "$(login_opens root $root/dev/nvidia1)" through
}

check_guard_old_login() {
	local cg
	cg=$(unit_of "$(cat "$state/old-login")")
	want "opening GPU 1 in a login from before" "$(open_as bob "$cg" $root/dev/nvidia1)" denied
	want "opening GPU 4 in a login from before" "$(open_as bob "$cg" $root/dev/nvidia4)" through
}

check_guard_reload() {
	systemctl daemon-reload
	guard_stands
}

check_guard_reexec() {
	systemctl daemon-reexec
	guard_stands
}

# Everybody logs out, and the first to come finds the guard.
check_guard_all_gone() {
	kill "$(cat "$state/old-login")"
	loginctl disable-linger alice bob
	# One by one: who is not there any more must not keep the other from being asked to go.
	loginctl terminate-user alice 2>/dev/null || true
	loginctl terminate-user bob 2>/dev/null || true
	until_true 60 nobody_there
	want "opening GPU 1 in the first login" "$(login_opens alice $root/dev/nvidia1)" denied
}
# A user's slice goes with his last process.
nobody_there() { [ ! -d "$cgroot$logins/user-2001.slice" ] && [ ! -d "$cgroot$logins/user-2002.slice" ]; }

check_guard_daemon() {
	trap 'systemctl start gpushared.service' EXIT
	systemctl stop gpushared.service gpushared.socket
	guard_stands
	systemctl start gpushared.socket gpushared.service
	guard_stands
}

# A lease that was started in a login is not in the login: it has its GPU, and the login still has none.
check_guard_lease() {
	local out
	out=$(login alice "gpushare run -q -t vision --grant big -- bash -c 'exec 3<>$root/dev/nvidia2'" 2>&1 || true)
	want "a lease opening its GPU" "$(said "$out")" through
	out=$(login alice "gpushare run -q -t vision --grant big -- bash -c 'exec 3<>$root/dev/nvidia1'" 2>&1 || true)
	want "a lease opening another GPU" "$(said "$out")" denied
	want "opening the GPU outside of the lease" "$(login_opens alice $root/dev/nvidia2)" denied
}

# A unit that the spec adopts is no login, and is kept to what it was adopted for; root in it is not.
check_guard_unit() {
	local cg
	systemd-run --quiet --unit lab-notebook.service --uid alice sleep 3000
	cg=$(cgroup_of lab-notebook.service)
	until_true 30 adopted
	until_true 30 opens_for_alice "$cg" $root/dev/nvidia2 # What it may open is granted once it has its lease.
	want "another GPU" "$(open_as alice "$cg" $root/dev/nvidia1)" denied
	want "a GPU that nobody manages" "$(open_as alice "$cg" $root/dev/nvidia4)" through
	want "the unit's GPU in a login of its user" "$(login_opens alice $root/dev/nvidia2)" denied
	# There is no place for another.
	systemd-run --quiet --unit lab-second.service --uid alice sleep 3000
	cg=$(cgroup_of lab-second.service)
	until_true 30 refused_second
	want "the GPU of the grant for a unit without a lease" "$(open_as alice "$cg" $root/dev/nvidia2)" denied
	systemctl stop lab-notebook.service lab-second.service
	until_true 30 not_adopted
}
opens_for_alice() { [ "$(open_as alice "$1" "$2")" = through ]; }
adopted() { [ "$(field '[.leases[] | select(.held == "unit")] | length')" = 1 ]; }
refused_second() { [[ $(field '[.node.conditions // [] | .[] | select(.kind == "not-adopted") | .message] | join("; ")') == *lab-second.service* ]]; }
not_adopted() { [ "$(field '[.leases[] | select(.held == "unit")] | length')" = 0 ]; }

# The slice is stopped and comes back as another cgroup: the daemon sees that its program is gone.
check_guard_mended() {
	local id
	id=$(stat -c %i "$cgroot$logins")
	systemctl stop user.slice
	systemctl start user.slice
	[ "$(stat -c %i "$cgroot$logins")" != "$id" ] || die "user.slice is the same cgroup as before"
	systemctl reload gpushared.service
	guard_stands
}
