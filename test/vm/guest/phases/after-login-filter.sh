# After a boot: GPUs were closed before the first login, and the unmanaged GPU was opened after that.
# checks: before_logins after_boot detached

. /opt/lab/guest/product.sh
. /opt/lab/guest/login-filter.sh

entered() { property "$1" ActiveEnterTimestampMonotonic; }

check_before_logins() {
	want "the unit that closes GPUs at boot" "$(property gpushare-login-filter.service Result)" success
	active gpushare-login-filter.service
	local out
	out=$(journalctl -b -u gpushare-login-filter.service --no-pager -o cat)
	[[ $out == *"every GPU is closed to $logins"* ]] || die "at boot it printed: $out"
	[ "$(entered gpushare-login-filter.service)" -le "$(entered systemd-user-sessions.service)" ] ||
		die "logins were possible before GPUs were closed to them"
	note "closed $((($(entered systemd-user-sessions.service) - $(entered gpushare-login-filter.service)) / 1000)) ms before logins"
}

check_after_boot() {
	until_true 60 unmanaged_open
	filter_active
	want "conditions of the login filter" "$(filter_conditions)" ""
}
unmanaged_open() { [ "$(login_opens alice $root/dev/nvidia4)" = through ]; }

check_detached() {
	local out
	out=$(gpushare apply -f "$spec")
	[[ $out == *"remove the login filter of logins"* ]] || die "isolation.logins: open says: $out"
	no_filter || die "the login filter is still attached"
	want "the output at boot with open logins" "$(gpushared -attach-login-filter)" "no login filter: the accepted spec does not request one"
}
