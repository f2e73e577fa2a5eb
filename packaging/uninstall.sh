#!/bin/sh
# uninstall.sh DESTDIR PREFIX removes what install.sh installed, and keeps the settings and the state. On the running system
# (no DESTDIR) it is refused while restrictions are active, like the removal of a package.
set -eu
if [ $# -ne 2 ]; then
	echo "uninstall.sh: usage: uninstall.sh DESTDIR PREFIX" >&2
	exit 2
fi
destdir=${1%/}
prefix=${2%/}
here=$(cd "$(dirname "$0")" && pwd)

if [ -z "$destdir" ]; then
	GPUSHARE="$prefix/bin/gpushare" "$here/scripts/prerm" remove
	if [ -d /run/systemd/system ]; then
		# Otherwise the enabling links would stay without a target.
		for unit in "$here"/systemd/*.service "$here"/systemd/*.socket; do
			systemctl --quiet --no-reload disable "$(basename "$unit")" || true
		done
	fi
fi

for file in bin/gpushare sbin/gpushared lib/sysusers.d/gpushare.conf lib/tmpfiles.d/gpushare.conf \
	lib/systemd/system-preset/90-gpushare.preset; do
	rm -f "$destdir$prefix/$file"
done
for unit in "$here"/systemd/*; do
	rm -f "$destdir$prefix/lib/systemd/system/$(basename "$unit")"
done
rm -rf "$destdir$prefix/libexec/gpushare" "$destdir$prefix/share/gpushare"
if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
