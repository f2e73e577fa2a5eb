# After a boot: logins were closed before there were any, and opened again for what nobody manages.
# checks: guard_before_logins guard_after_boot guard_taken_off

. /opt/lab/guest/product.sh
. /opt/lab/guest/guard.sh

entered() { property "$1" ActiveEnterTimestampMonotonic; }

check_guard_before_logins() {
	want "the unit that closes GPUs at boot" "$(property gpushare-login-filter.service Result)" success
	active gpushare-login-filter.service
	local out
	out=$(journalctl -b -u gpushare-login-filter.service --no-pager -o cat)
	[[ $out == *"every GPU is closed to $logins"* ]] || die "at boot it said: $out"
	[ "$(entered gpushare-login-filter.service)" -le "$(entered systemd-user-sessions.service)" ] ||
		die "logins were possible before GPUs were closed to them"
	note "closed $((($(entered systemd-user-sessions.service) - $(entered gpushare-login-filter.service)) / 1000)) ms before logins"
}

check_guard_after_boot() {
	until_true 60 narrowed
	guard_stands
	want "conditions of the guard" "$(guard_conditions)" ""
}
narrowed() { [ "$(login_opens alice $root/dev/nvidia4)" = through ]; }

check_guard_taken_off() {
	local out
	out=$(gpushare apply -f "$spec")
	[[ $out == *"take the guard off logins"* ]] || die "isolation.logins: open says: $out"
	no_guard || die "the guard is still on"
	want "the guard at boot without one" "$(gpushared -attach-login-filter)" "no login filter: the accepted spec does not request one"
}
