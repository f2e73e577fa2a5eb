#!/bin/bash
# Runs phases of checks inside the guest, one after the other, and reports on the virtio port. The phases are named on the
# kernel's command line, with commas; a phase file lists its checks, each of them a function that fails by failing.
set -u
here=/opt/lab/guest
phases=$(sed -n 's/.*gpushare\.lab=\([^ ]*\).*/\1/p' /proc/cmdline | tr , ' ')
state=/var/lib/gpushare-lab
mkdir -p "$state" /run/lab
[ -p /run/lab/never ] || mkfifo /run/lab/never # It has no writer: a wait without a process.
exec 3>/dev/virtio-ports/gpushare.lab

say() { echo "$*" >&3; }
# A phase lists its checks in its first lines: "checks: a b c". With "seconds: 330" each of them has that time instead of 150 s.
checks_of() { sed -n 's/^# checks: *//p' "$here/phases/$1.sh" 2>/dev/null; }

perl "$here/spent.pl" /run/lab/spent on || say "note the kernel does not report the CPU time of programs"
plan=
for phase in $phases; do
	for check in $(checks_of "$phase") confined; do plan+=" $phase/$check"; done
	# A phase that is not there is a check that was announced and never ends.
	[ -n "$(checks_of "$phase")" ] || plan+=" $phase/missing"
done
say plan$plan
say "note systemd $(systemctl --version | sed -n '1s/systemd //p'), Linux $(uname -r)"
say "note $(systemd-analyze time 2>/dev/null | head -n 1)"

one() { # one PHASE CHECK
	local name=$1/$2 log=/run/lab/$1.$2.log began rc seconds limit
	limit=$(sed -n 's/^# seconds: *//p' "$here/phases/$1.sh" 2>/dev/null)
	say "run $name"
	began=$(cut -d' ' -f1 /proc/uptime)
	timeout -k 5 "${limit:-150}" bash "$here/check.sh" "$here/phases/$1.sh" "$2" >"$log" 2>&1 3>&-
	rc=$?
	seconds=$(cut -d' ' -f1 /proc/uptime | awk -v a="$began" '{ printf "%.1f", $1 - a }')
	sed -n 's/^NOTE //p' "$log" | while read -r line; do say "note $name: $line"; done
	case $rc in
	0) say "ok $name $seconds" ;;
	77) say "skip $name $(sed -n 's/^SKIP //p' "$log" | tail -n 1)" ;;
	124 | 137) say "fail $name did not end within ${limit:-150} s" ;;
	*) say "fail $name $(grep -v '^NOTE ' "$log" | tail -n 1)" ;;
	esac
	if [ "$rc" != 0 ] && [ "$rc" != 77 ]; then
		{
			cat "$log"
			echo "--- journal"
			journalctl --no-pager -o short-monotonic -n 40 2>/dev/null | cut -c1-300
		} | while IFS= read -r line; do say "log $name $line"; done
	fi
}
# used prints CPU seconds since the boot: of the running programs, and of all others together.
used() {
	ps -eo cputimes=,comm= | awk -v all="$(awk 'NR == 1 { print ($2 + $3 + $4 + $7 + $8) / 100 }' /proc/stat)" '
		{ by[$2] += $1; rest += $1 }
		END { for (c in by) if (by[c] > 4) print by[c], c; printf "%d others\n", all - rest }' | sort -nr | head -n 9 | paste -sd, -
}
for phase in $phases; do
	for check in $(checks_of "$phase") confined; do one "$phase" "$check"; done
	say "note after $phase: processor seconds since the boot $(used); ended in it: $(perl "$here/spent.pl" /run/lab/spent off)"
done
say done
# The host keeps the whole journal; the report above is its summary.
journalctl --no-pager -b -o short-monotonic >/dev/virtio-ports/gpushare.journal 2>/dev/null
