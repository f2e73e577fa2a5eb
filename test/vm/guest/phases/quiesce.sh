# A unit that has a GPU open is stopped around a change of its MIG instances and runs again after it, also when the daemon
# is killed while it is stopped. It comes after product, needs no job of it, and leaves its spec in force.
# checks: unit_is_listed stopped_and_started killed_while_stopped spec_back

. /opt/lab/guest/product.sh

unit=lab-exporter.service
layout() { # layout LAYOUT writes the lab's spec with another layout of GPU 0 and with the unit
	sed -e "0,/layout: .*/s//layout: [$1]}/" -e "s/^  enforce: on$/&\n  quiesce: [$unit]/" "$spec"
}
# Like an exporter: the node is open, and NVML lists no process. No driver is behind the node, so a file in its place is opened: the daemon
# knows the nodes of a virtual node by their files.
start_exporter() {
	mv "$root/dev/nvidia0" "$root/nvidia0"
	install -m 0666 /dev/null "$root/dev/nvidia0"
	cat >/run/systemd/system/$unit <<-UNIT
		[Service]
		ExecStart=/usr/bin/perl -e 'sysopen(GPU, "$root/dev/nvidia0", 0) or die; open(READY, ">", "/run/lab/exporter"); sleep 36000'
	UNIT
	systemctl daemon-reload
	rm -f /run/lab/exporter
	systemctl start $unit
	until_true 20 test -e /run/lab/exporter
}
invocation() { property $unit InvocationID; }
instances() { placements | awk -v gpu="$(field '.gpus[0].uuid')" '$1 == gpu { print $2 }' | sort | xargs; }
done_changing() { [ "$(property $unit ActiveState) $(field '[.node.operation // empty, (.gpus[] | select(.state != "ok"))] | length')" = "active 0" ]; }

check_unit_is_listed() {
	start_exporter
	layout "3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb" | gpushare apply -f -
	local out
	out=$(layout "3g.40gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb" | gpushare apply --check -f -) || true
	[[ $out == *"stop $unit"*"start $unit again"* ]] || die "the plan does not show that the unit is stopped: $out"
	active $unit
}

check_stopped_and_started() {
	local was
	was=$(invocation)
	layout "3g.40gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb" | gpushare apply -f -
	active $unit
	[ "$(invocation)" != "$was" ] || die "the unit was not stopped"
	want "instances" "$(instances)" "1g.10gb 1g.10gb 1g.10gb 1g.10gb 3g.40gb"
}

check_killed_while_stopped() {
	local restarts
	until_true 20 test -e /run/lab/exporter
	restarts=$(property gpushared.service NRestarts)
	/usr/local/lib/gpusim/gpusim ctl --root $root latency GpuInstanceDestroy 4s
	(layout "3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb" | gpushare apply -f - >/run/lab/quiesce.apply 2>&1) &
	until_true 60 stopped
	kill -KILL "$(property gpushared.service MainPID)"
	until_true 60 restarted $((restarts + 1))
	until_true 60 done_changing
	/usr/local/lib/gpusim/gpusim ctl --root $root latency GpuInstanceDestroy 0s
	case $(instances) in
	"1g.10gb 1g.10gb 2g.20gb 3g.40gb" | "1g.10gb 1g.10gb 1g.10gb 1g.10gb 3g.40gb") ;;
	*) die "after the crash GPU 0 has $(instances)" ;;
	esac
	note "after the crash GPU 0 has $(instances), and the unit runs"
}
stopped() { [ "$(property $unit ActiveState)" = inactive ]; }
restarted() { [ "$(property gpushared.service NRestarts)" = "$1" ] && active gpushared.service && answers; }

check_spec_back() {
	gpushare apply -f "$spec"
	want "instances" "$(instances)" "1g.10gb 1g.10gb 2g.20gb 3g.40gb"
	systemctl stop $unit
	rm /run/systemd/system/$unit
	systemctl daemon-reload
	mv "$root/nvidia0" "$root/dev/nvidia0"
}
