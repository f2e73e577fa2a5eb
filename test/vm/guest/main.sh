#!/bin/bash
# Runs one phase of checks inside the guest and reports on the virtio port. The phase is named on the kernel's command
# line; a phase file lists its checks, each of them a function that fails by failing.
set -u
here=/opt/lab/guest
phase=$(sed -n 's/.*gpushare\.lab=\([^ ]*\).*/\1/p' /proc/cmdline)
file=$here/phases/$phase.sh
state=/var/lib/gpushare-lab
mkdir -p "$state" /run/lab
exec 3>/dev/virtio-ports/gpushare.lab

say() { echo "$*" >&3; }

if [ ! -f "$file" ]; then
	say "fail phase there is no phase $phase"
	say done
	exit 1
fi
# A phase says in its first lines what it is made of: "checks: a b c".
checks=$(sed -n 's/^# checks: *//p' "$file")
say plan $checks
say "note systemd $(systemctl --version | sed -n '1s/systemd //p'), Linux $(uname -r)"
say "note $(systemd-analyze time 2>/dev/null | head -n 1)"

for check in $checks; do
	say "run $check"
	log=/run/lab/$check.log
	began=$(cut -d' ' -f1 /proc/uptime)
	timeout -k 5 120 bash "$here/check.sh" "$file" "$check" >"$log" 2>&1
	rc=$?
	seconds=$(cut -d' ' -f1 /proc/uptime | awk -v a="$began" '{ printf "%.1f", $1 - a }')
	sed -n 's/^NOTE //p' "$log" | while read -r line; do say "note $check: $line"; done
	case $rc in
	0) say "ok $check $seconds" ;;
	77) say "skip $check $(sed -n 's/^SKIP //p' "$log" | tail -n 1)" ;;
	124 | 137) say "fail $check did not end within 120 s" ;;
	*) say "fail $check $(grep -v '^NOTE ' "$log" | tail -n 1)" ;;
	esac
	if [ "$rc" != 0 ] && [ "$rc" != 77 ]; then
		{
			cat "$log"
			echo "--- journal"
			journalctl --no-pager -o short-monotonic -n 40 2>/dev/null | cut -c1-300
		} | while IFS= read -r line; do say "log $check $line"; done
	fi
done
say done
# The whole journal goes to the console, which the host keeps; the report above is for people in a hurry.
journalctl --no-pager -b -o short-monotonic 2>/dev/null | cut -c1-400 >/dev/ttyS0
