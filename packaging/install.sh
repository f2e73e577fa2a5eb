#!/bin/sh
# install.sh DESTDIR PREFIX BIN_DIR installs the product to the paths that packages use: binaries from BIN_DIR, units, users,
# runtime directories, settings and examples. It starts and enables nothing. Existing settings are kept.
set -eu
if [ $# -ne 3 ]; then
	echo "install.sh: usage: install.sh DESTDIR PREFIX BIN_DIR" >&2
	exit 2
fi
umask 022
destdir=${1%/}
prefix=${2%/}
bin=$3
here=$(cd "$(dirname "$0")" && pwd)
unitdir=$prefix/lib/systemd/system

for program in gpushare gpushared gpushare-nvml gpushare-thaw gpushare-start; do
	if [ ! -x "$bin/$program" ]; then
		echo "install.sh: cannot install: $bin/$program is missing; run make build first" >&2
		exit 1
	fi
done

put() { # put MODE SOURCE TARGET
	install -D -m "$1" "$2" "$destdir$3"
}
# The units contain /usr; another PREFIX replaces it.
put_unit() {
	mkdir -p "$destdir$unitdir"
	sed -e "s#/usr/sbin/#$prefix/sbin/#g" -e "s#/usr/bin/#$prefix/bin/#g" -e "s#/usr/libexec/#$prefix/libexec/#g" \
		"$1" >"$destdir$unitdir/$(basename "$1")"
	chmod 0644 "$destdir$unitdir/$(basename "$1")"
}

put 0755 "$bin/gpushare" "$prefix/bin/gpushare"
put 0755 "$bin/gpushared" "$prefix/sbin/gpushared"
put 0755 "$bin/gpushare-nvml" "$prefix/libexec/gpushare/gpushare-nvml"
put 0755 "$bin/gpushare-thaw" "$prefix/libexec/gpushare/gpushare-thaw"
put 0755 "$bin/gpushare-start" "$prefix/libexec/gpushare/gpushare-start"
for unit in "$here"/systemd/*; do
	put_unit "$unit"
done
put 0644 "$here/sysusers.d/gpushare.conf" "$prefix/lib/sysusers.d/gpushare.conf"
put 0644 "$here/tmpfiles.d/gpushare.conf" "$prefix/lib/tmpfiles.d/gpushare.conf"
put 0644 "$here/preset/90-gpushare.preset" "$prefix/lib/systemd/system-preset/90-gpushare.preset"
for example in "$here"/../examples/*; do
	[ -f "$example" ] && put 0644 "$example" "$prefix/share/gpushare/examples/$(basename "$example")"
done
if [ ! -e "$destdir/etc/gpushare/gpushared.yaml" ]; then
	put 0644 "$here/etc/gpushared.yaml" /etc/gpushare/gpushared.yaml
fi
