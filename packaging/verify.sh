#!/bin/sh
# verify.sh [BIN_DIR] installs into a temporary root and checks the units there with systemd-analyze. Any line of output is
# a failure, and so is an exposure that differs from security-scores.
set -eu
bin=${1:-bin}
here=$(cd "$(dirname "$0")" && pwd)

if ! command -v systemd-analyze >/dev/null 2>&1; then
	echo "verify.sh: cannot verify the units: systemd-analyze is missing; apt-get install systemd" >&2
	exit 1
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
"$here/install.sh" "$root" /usr "$bin"

# The units are ordered after units of systemd. The temporary root needs them, or verify reports them as missing.
mkdir -p "$root/usr/lib/systemd/system"
for dir in /usr/lib/systemd/system /lib/systemd/system; do
	[ -d "$dir" ] && cp -rn "$dir/." "$root/usr/lib/systemd/system/"
done
rm -f "$root"/usr/lib/systemd/system/*nvidia*

failed=0
for file in "$here"/systemd/*; do
	unit=$(basename "$file")
	if ! out=$(systemd-analyze verify --root="$root" --man=no --recursive-errors=no "$unit" 2>&1) || [ -n "$out" ]; then
		echo "verify.sh: $unit: ${out:-systemd-analyze verify failed}" >&2
		failed=1
	fi
done

"$here/security.sh" "$here/security-scores" "$root" || failed=1

# Profiles are compiled, not loaded, as this host's tool reads them.
if command -v apparmor_parser >/dev/null 2>&1 && [ -d /etc/apparmor.d/tunables ]; then
	for profile in "$root"/etc/apparmor.d/*; do
		out=$(apparmor_parser --skip-kernel-load --skip-cache "$profile" 2>&1 | grep -v '^Cache read/write disabled' || true)
		[ -z "$out" ] && continue
		echo "verify.sh: $profile: $out" >&2
		failed=1
	done
else
	echo "verify.sh: the profiles were not compiled: apparmor_parser is missing; apt-get install apparmor" >&2
fi

for check in "systemd-sysusers $root/usr/lib/sysusers.d/gpushare.conf" \
	"systemd-tmpfiles --create $root/usr/lib/tmpfiles.d/gpushare.conf"; do
	set -- $check
	command -v "$1" >/dev/null 2>&1 || continue
	tool=$1
	shift
	mkdir -p "$root/etc" "$root/run"
	if ! out=$("$tool" --root="$root" "$@" 2>&1) || [ -n "$(echo "$out" | grep -v -e '^Creating group' -e '^Creating user' || true)" ]; then
		echo "verify.sh: $tool: $out" >&2
		failed=1
	fi
done
if command -v journalctl >/dev/null 2>&1; then
	mkdir -p "$root/var/lib/systemd/catalog"
	if ! out=$(journalctl --root="$root" --update-catalog 2>&1) || [ -n "$out" ] ||
		! journalctl --root="$root" --list-catalog 2>&1 | grep -q ' gpushare: '; then
		echo "verify.sh: the journal catalog: ${out:-it has no message of gpushare}" >&2
		failed=1
	fi
fi
exit $failed
