# Reloads and restarts of systemd and D-Bus and an upgrade of gpushare, and the way back, do not disturb a tenant that opens its device all the
# time.
# checks: begin reload reexec dbus set_property worker upgrade one_version_back converges end

. /opt/lab/guest/product.sh

opens=/run/lab/opens
samples=/run/lab/samples

# A lease of alice tries its own GPU and a neighbour's all the time. The limits of her tenant are read all the time.
check_begin() {
	rm -f $opens* $samples*
	install -m 0666 /dev/null $opens
	install -m 0666 /dev/null $opens.rounds
	exec_as alice gpushare run -t vision --grant dev -- \
		bash /opt/lab/guest/opener.sh $root/dev/nvidia1 $root/dev/nvidia2 $opens >/run/lab/opener.out 2>&1 </dev/null &
	echo $! >"$state/opener"
	disown
	bash /opt/lab/guest/sampler.sh $samples "$cgroot$(cgroup_of gpushare-vision.slice)" \
		memory.max=$((256 << 20)) "cpu.max=150000 100000" cpu.weight=200 pids.max=128 >/dev/null 2>&1 </dev/null &
	disown
	until_true 30 rounds_beyond 5
	known >"$state/known"
	note "$(tr '\n' ';' <"$state/known")"
	undisturbed
}
rounds() { cat $opens.rounds 2>/dev/null || true; }
rounds_beyond() { [ "$(rounds)" -gt "$1" ] 2>/dev/null; }
# The processes that must not change: those of leases with their start time, and the MPS control daemon.
known() {
	local p who stat
	until_true 30 read_status
	gojq -r '(.leases[] | "\(.pid) \(.id) \(.tenant)/\(.grant)"), (.gpus[].mps.pid // empty | "\(.) mps")' /run/lab/status | sort |
		while read -r p who; do
			read -r stat <"/proc/$p/stat"
			stat=${stat##*) }
			echo "$p $who since $(cut -d' ' -f20 <<<"$stat")"
		done
}
read_status() { status >/run/lab/status 2>&1; }
# After each event: five more rounds of both opens with the right result, and the same processes as before.
undisturbed() {
	local from
	from=$(rounds)
	until_true 60 rounds_beyond $((from + 5))
	want "opens of its own GPU that were denied" "$(grep -c 'nvidia1: Operation not permitted' $opens || true)" 0
	want "opens of a neighbour's GPU that were not denied" "$(grep 'nvidia2: ' $opens | grep -vc 'Operation not permitted' || true)" 0
	want "answers of another kind" "$(grep -vcE 'nvidia1: No such device or address|nvidia2: Operation not permitted' $opens || true)" 0
	want "limits that were not in force" "$(head -n 3 $samples)" ""
	want "who runs" "$(known)" "$(cat "$state/known")"
}

check_reload() {
	systemctl daemon-reload
	systemctl daemon-reload
	undisturbed
}

check_reexec() {
	systemctl daemon-reexec
	undisturbed
}

# The daemon connects again after a restart of the bus, and can start a lease.
check_dbus() {
	local restarts
	restarts=$(property gpushared.service NRestarts)
	systemctl restart dbus.service
	undisturbed
	# Seen on 257: logind does not connect to a restarted bus, and logins wait for it.
	systemctl restart systemd-logind.service
	want "restarts of the daemon" "$(property gpushared.service NRestarts)" "$restarts"
	until_true 60 can_run
	undisturbed
}
can_run() { as bob gpushare run -t speech --grant dev -- true; }

# Properties of other units are set, and systemd writes the cgroups around gpushare.slice again.
check_set_property() {
	systemctl set-property --runtime system.slice CPUWeight=77 MemoryHigh=10G
	systemctl set-property --runtime user.slice TasksMax=9999
	undisturbed
	systemctl revert system.slice user.slice
	undisturbed
}

check_worker() {
	kill -KILL "$(pgrep -f -o gpushare-nvml)"
	undisturbed
	until_true 60 all_ok
}
all_ok() { [ "$(field '[.gpus[] | select(.state != "ok")] | length')" = 0 ]; }

check_upgrade() {
	replace_package next.deb 1.1
	[[ $(gpushare version) == *lab-next* ]] || die "the daemon is still the old one: $(gpushare version)"
}

check_one_version_back() {
	replace_package gpushare.deb 1.0
	[[ $(gpushare version) != *lab-next* ]] || die "the daemon is still the newer one: $(gpushare version)"
}

replace_package() { # replace_package FILE VERSION
	local before began
	before=$(gpushare version | tr '\n' ' ')
	began=$(uptime_ms)
	dpkg -i "/opt/lab/packages/$1" >/run/lab/dpkg 2>&1 || die "$(cat /run/lab/dpkg)"
	note "before: $before; after $(($(uptime_ms) - began)) ms: $(gpushare version | tr '\n' ' ')"
	undisturbed
	want "the installed version" "$(dpkg-query -W -f '${Version}' gpushare)" "$2"
	active gpushared.service
	grep -q '^host_root:' /etc/gpushare/gpushared.yaml || die "the settings were replaced"
	until_true 60 all_ok
}

# Nothing needs correction, and the limits shown are those of the kernel.
check_converges() {
	local out
	out=$(gpushare apply -f "$spec")
	[[ $out == *"no changes"* ]] || die "an apply after all that says: $out"
	want "limits that are not in force" \
		"$(field '[.tenants[] | .limits // [] | .[] | select((.in_force // "") == "")] | length')" 0
	# A write from outside to the cgroup of a tenant is drift: the converge loop corrects it.
	echo max >"$cgroot$(cgroup_of gpushare-speech.slice)/pids.max"
	gpushare config reload || true # It says what it found.
	until_true 60 corrected
}
corrected() { [ "$(cat "$cgroot$(cgroup_of gpushare-speech.slice)/pids.max")" = 128 ]; }

check_end() {
	touch $opens.stop $samples.stop
	until_true 30 ended "$(cat "$state/opener")"
	note "$(rounds) opens of each kind, $(cat $samples.samples) samples of the limits"
	[ "$(rounds)" -ge 30 ] || die "only $(rounds) rounds of opens"
	[ "$(cat $samples.samples)" -ge 50 ] || die "only $(cat $samples.samples) samples"
}
