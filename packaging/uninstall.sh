#!/bin/sh
# uninstall.sh DESTDIR PREFIX removes what install.sh recorded that it installed, and keeps the settings and the state. On the
# running system (no DESTDIR) it is refused while restrictions are active, like the removal of a package.
set -eu
if [ $# -ne 2 ]; then
	echo "uninstall.sh: usage: uninstall.sh DESTDIR PREFIX" >&2
	exit 2
fi
destdir=${1%/}
prefix=${2%/}
here=$(cd "$(dirname "$0")" && pwd)
record=$destdir$prefix/share/gpushare/installed
if [ ! -f "$record" ]; then
	echo "uninstall.sh: cannot uninstall: $record is missing, so make install did not install below $prefix; a package is removed by apt or dnf" >&2
	exit 1
fi

if [ -z "$destdir" ]; then
	GPUSHARE="$prefix/bin/gpushare" "$here/scripts/prerm" remove
fi

while read -r file; do
	case $file in
	*/etc/apparmor.d/*)
		# A profile that stays loaded would confine what is installed at its path next.
		if [ -z "$destdir" ] && [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null || true)" = Y ] && command -v apparmor_parser >/dev/null; then
			apparmor_parser --remove "$prefix/$file" || true # It may have been removed by hand.
		fi
		;;
	esac
	rm -f "$destdir$prefix/$file"
done <"$record"
rm -rf "$destdir$prefix/libexec/gpushare" "$destdir$prefix/share/gpushare" "$destdir$prefix/share/doc/gpushare"
if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	! getent passwd gpushare-front >/dev/null || userdel gpushare-front || true # As in postrm.
fi
