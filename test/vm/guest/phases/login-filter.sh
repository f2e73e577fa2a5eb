# The login filter denies managed GPUs to new and old logins, through reloads and restarts of systemd. Leases of a user are not affected.
# checks: off plan on again jobs started_again old_login reload reexec first_login daemon lease unit corrected

. /opt/lab/guest/product.sh
. /opt/lab/guest/login-filter.sh

# A login of a lingering user is faster.
check_off() {
	loginctl enable-linger alice bob
	no_filter || die "a login cannot open a GPU although logins are open: $(login_opens alice $root/dev/nvidia1)"
}

check_plan() {
	make_closed
	local out
	out=$(gpushare apply -f "$closed" --check)
	[[ $out == *"to logins ($logins)"* ]] || die "the plan does not show the login filter: $out"
	no_filter || die "--check attached the login filter"
}

# A login from before the filter keeps the devices that it has open, and cannot open more.
check_on() {
	# The login prints its own pid: other sleep processes of bob may be left from earlier phases.
	rm -f "$state/old-login"
	runuser -l bob -c 'echo $$; exec sleep 3000' </dev/null >"$state/old-login" 2>/dev/null &
	disown
	until_true 90 grep -qs . "$state/old-login"
	[[ $(unit_of "$(cat "$state/old-login")") == $logins/* ]] || die "the login is in $(unit_of "$(cat "$state/old-login")")"
	gpushare apply -f "$closed"
	filter_active
}

check_again() {
	local out
	want "conditions of the login filter" "$(filter_conditions)" ""
	out=$(gpushare apply -f "$closed")
	[[ $out == *"no changes"* ]] || die "the second apply says: $out"
	want "opening GPU 1 in a login of root" "$(login_opens root $root/dev/nvidia1)" through
}

# cron and at run jobs of users in their own units, outside of every login. A job opens no managed GPU, and a lease that it
# starts opens its own.
check_jobs() {
	local job
	for job in cron at; do rm -f /home/alice/$job.cgroup /home/alice/$job.opens /home/alice/$job.leased; done
	printf '%s\n' "$opens" >/home/alice/opens
	printf '#!/bin/bash\n%s\n%s\n%s\n' "grep ^0:: /proc/self/cgroup >/home/alice/\$1.cgroup" \
		"bash /home/alice/opens $root/dev/nvidia1 $root/dev/nvidia4 | xargs >/home/alice/\$1.opens" \
		"gpushare run -q -t vision --grant big -- bash /home/alice/opens $root/dev/nvidia1 $root/dev/nvidia2 | xargs >/home/alice/\$1.leased" >/home/alice/job
	crontab -u alice - <<<"* * * * * bash /home/alice/job cron"
	until_true 150 grep -qs . /home/alice/cron.leased
	crontab -u alice -r
	until_true 30 free_of_leases # The job of at needs the GPU of the grant.
	as alice bash -c 'cd / && echo "bash /home/alice/job at" | at -M now' 2>/dev/null
	until_true 60 grep -qs . /home/alice/at.leased
	for job in cron:cron.service at:atd.service; do
		[[ $(cat "/home/alice/${job%:*}.cgroup") == */${job#*:}* ]] || die "the job of ${job%:*} is in $(cat "/home/alice/${job%:*}.cgroup")"
		want "what a job of ${job%:*} opens of GPUs 1 and 4" "$(cat "/home/alice/${job%:*}.opens")" "denied through"
		want "what a lease in a job of ${job%:*} opens of GPUs 1 and 2" "$(cat "/home/alice/${job%:*}.leased")" "denied through"
	done
}
free_of_leases() { [ "$(field '[.leases[] | select(.tenant == "vision" and .grant == "big")] | length')" = 0 ]; }

# A unit that was started again has another cgroup. systemd reports its start.
check_started_again() {
	systemctl restart cron.service
	until_true 10 cron_is_closed
	want "conditions of the login filter" "$(filter_conditions)" ""
}
cron_is_closed() { [ "$(open_as alice "$(cgroup_of cron.service)" $root/dev/nvidia1)" = denied ]; }

check_old_login() {
	local cg
	cg=$(unit_of "$(cat "$state/old-login")")
	want "opening GPU 1 in a login from before" "$(open_as bob "$cg" $root/dev/nvidia1)" denied
	want "opening GPU 4 in a login from before" "$(open_as bob "$cg" $root/dev/nvidia4)" through
}

check_reload() {
	systemctl daemon-reload
	filter_active
}

check_reexec() {
	systemctl daemon-reexec
	filter_active
}

# All users log out, and the filter applies to the next login.
check_first_login() {
	kill "$(cat "$state/old-login")"
	loginctl disable-linger alice bob
	# One call for each user: the call fails for a user without a session.
	loginctl terminate-user alice 2>/dev/null || true
	loginctl terminate-user bob 2>/dev/null || true
	until_true 60 logged_out
	want "opening GPU 1 in the first login" "$(login_opens alice $root/dev/nvidia1)" denied
}
# A user's slice is removed with the last process in it.
logged_out() { [ ! -d "$cgroot$logins/user-2001.slice" ] && [ ! -d "$cgroot$logins/user-2002.slice" ]; }

check_daemon() {
	trap 'systemctl start gpushared.service' EXIT
	systemctl stop gpushared.service gpushared.socket
	filter_active
	systemctl start gpushared.socket gpushared.service
	filter_active
}

# A lease that is started in a login runs outside it: the lease opens its GPU, and the login still opens none.
check_lease() {
	local out
	out=$(login alice "gpushare run -q -t vision --grant big -- bash -c 'exec 3<>$root/dev/nvidia2'" 2>&1 || true)
	want "a lease opening its GPU" "$(said "$out")" through
	out=$(login alice "gpushare run -q -t vision --grant big -- bash -c 'exec 3<>$root/dev/nvidia1'" 2>&1 || true)
	want "a lease opening another GPU" "$(said "$out")" denied
	want "opening the GPU outside of the lease" "$(login_opens alice $root/dev/nvidia2)" denied
}

# A unit that the spec adopts opens the GPU of its grant and no other managed GPU. Processes of root in it open all GPUs.
check_unit() {
	local cg
	systemd-run --quiet --unit lab-notebook.service --uid alice sleep 3000
	cg=$(cgroup_of lab-notebook.service)
	until_true 30 adopted
	until_true 30 opens_for_alice "$cg" $root/dev/nvidia2 # Access is granted with the lease.
	want "another GPU" "$(open_as alice "$cg" $root/dev/nvidia1)" denied
	want "an unmanaged GPU" "$(open_as alice "$cg" $root/dev/nvidia4)" through
	want "the unit's GPU in a login of its user" "$(login_opens alice $root/dev/nvidia2)" denied
	# The grant has no GPU left for a second unit.
	systemd-run --quiet --unit lab-second.service --uid alice sleep 3000
	cg=$(cgroup_of lab-second.service)
	until_true 30 refused_second
	want "the GPU of the grant for a unit without a lease" "$(open_as alice "$cg" $root/dev/nvidia2)" denied
	systemctl stop lab-notebook.service lab-second.service
	until_true 30 not_adopted
}
opens_for_alice() { [ "$(open_as alice "$1" "$2")" = through ]; }
adopted() { [ "$(field '[.leases[] | select(.origin == "unit")] | length')" = 1 ]; }
refused_second() { [[ $(field '[.node.conditions // [] | .[] | select(.kind == "not-adopted") | .message] | join("; ")') == *lab-second.service* ]]; }
not_adopted() { [ "$(field '[.leases[] | select(.origin == "unit")] | length')" = 0 ]; }

# The slice is stopped and started as another cgroup: the daemon sees that the program is not attached to it.
check_corrected() {
	local id
	id=$(stat -c %i "$cgroot$logins")
	systemctl stop user.slice
	systemctl start user.slice
	[ "$(stat -c %i "$cgroot$logins")" != "$id" ] || die "user.slice is the same cgroup as before"
	systemctl reload gpushared.service
	filter_active
}
