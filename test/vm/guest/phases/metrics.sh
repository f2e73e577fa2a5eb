# The unit of the daemon has no network until the settings have an address for metrics, and none after they had one.
# checks: no_network address no_network_again

. /opt/lab/guest/product.sh

no_network() {
	want "the drop-in for the network" "$(property gpushared.service DropInPaths | grep -c metrics-address || true)" 0
	want "the families of addresses" "$(property gpushared.service RestrictAddressFamilies | tr ' ' '\n' | sort | xargs)" "AF_NETLINK AF_UNIX"
}
check_no_network() { no_network; }

scrape() { # scrape prints the first line of the answer, and how many lines are about GPUs
	exec 5<>/dev/tcp/127.0.0.1/9735
	printf 'GET /metrics HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic %s\r\n\r\n' "$(printf 'lab:%s' "$1" | base64)" >&5
	tr -d '\r' <&5 >/run/lab/scrape
	exec 5<&-
	echo "$(sed -n '1s/.* \([0-9]*\) .*/\1/p' /run/lab/scrape) $(grep -c '^gpushare_' /run/lab/scrape || true)"
}

check_address() {
	cat >/etc/gpushare/metrics-web.yaml <<-'WEB'
		basic_auth_users: {lab: '$2a$04$wsKX.x7IoOwZtRIOGs8bv.GypPFFJU3vYE0loLKGKkdLcHjUnGc1u'}
	WEB
	cp /etc/gpushare/gpushared.yaml /run/lab/settings
	printf 'metrics_address: 127.0.0.1:9735\nmetrics_web_config: /etc/gpushare/metrics-web.yaml\n' >>/etc/gpushare/gpushared.yaml
	# Without the reload the daemon says what is missing, and does not serve.
	local code=0 answer
	systemctl restart gpushared.service 2>/dev/null || code=$?
	[ "$code" != 0 ] || die "the daemon has the network without a reload"
	# grep reads all: with -q journalctl may fail, because its output is closed.
	said() { journalctl --no-pager -b -u gpushared.service -n 50 -o cat | grep "systemctl daemon-reload" >/dev/null; }
	until_true 10 said # what to do
	systemctl daemon-reload
	systemctl reset-failed gpushared.service
	systemctl restart gpushared.service
	active gpushared.service
	answer=$(scrape lab)
	note "with the password: $answer"
	[[ $answer == "200 "* && ${answer#* } -gt 10 ]] || die "a scrape answers $answer: $(head -n 5 /run/lab/scrape)"
	[[ $(scrape wrong) == "401 "* ]] || die "a wrong password is accepted"
	check_confined
}

check_no_network_again() {
	cp /run/lab/settings /etc/gpushare/gpushared.yaml
	rm /etc/gpushare/metrics-web.yaml
	systemctl daemon-reload
	systemctl restart gpushared.service
	no_network
	! (exec 5<>/dev/tcp/127.0.0.1/9735) 2>/dev/null || die "the address is still open"
}
