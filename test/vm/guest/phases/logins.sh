# Ways to log in to the guest, for the phases about logins.
# checks: session ssh_session user_manager

check_session() {
	local out
	out=$(login alice 'sed -n s/^0:://p /proc/self/cgroup; echo "$XDG_RUNTIME_DIR"')
	[[ $out == /user.slice/user-2001.slice/session-*.scope*/run/user/2001 ]] || die "a login says: $out"
}

check_ssh_session() {
	local out
	out=$(ssh_as bob 'sed -n s/^0:://p /proc/self/cgroup; echo "$XDG_RUNTIME_DIR"')
	[[ $out == /user.slice/user-2002.slice/session-*.scope*/run/user/2002 ]] || die "a login by ssh says: $out"
}

# The user manager works, so that a check that finds an escape denied is not misled by the lab.
check_user_manager() {
	local out
	out=$(login alice 'systemd-run --user --quiet --scope sed -n s/^0:://p /proc/self/cgroup')
	[[ $out == /user.slice/user-2001.slice/user@2001.service/app.slice/run-*.scope ]] || die "a scope of a user's manager says: $out"
}
