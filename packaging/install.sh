#!/bin/sh
# install.sh DESTDIR PREFIX BIN_DIR installs the product: binaries from BIN_DIR, units, users, runtime directories, settings,
# man pages, completions, documentation and examples. It starts and enables nothing. Existing settings are kept. This is the
# only list of what is installed: packages have what it installs (package.sh), and uninstall.sh removes what it recorded in
# PREFIX/share/gpushare/installed.
set -eu
if [ $# -ne 3 ]; then
	echo "install.sh: usage: install.sh DESTDIR PREFIX BIN_DIR" >&2
	exit 2
fi
umask 022
destdir=${1%/}
prefix=${2%/}
bin=$(cd "$3" && pwd)
here=$(cd "$(dirname "$0")" && pwd)

for program in gpushare gpushared gpushare-cli gpushare-nvml gpushare-thaw gpushare-start gpushare-front gpushare-plot; do
	if [ ! -x "$bin/$program" ]; then
		echo "install.sh: cannot install: $bin/$program is missing; run make build first" >&2
		exit 1
	fi
done

if [ ! -d "$bin/share" ]; then
	echo "install.sh: cannot install: $bin/share is missing; run make build first" >&2
	exit 1
fi

record=$destdir$prefix/share/gpushare/installed
mkdir -p "$(dirname "$record")"
: >"$record"
put() { # put MODE SOURCE TARGET: TARGET is below PREFIX
	install -D -m "$1" "$2" "$destdir$prefix/$3"
	echo "$3" >>"$record"
}
# The units contain /usr; another PREFIX replaces it.
put_unit() {
	put 0644 "$1" "lib/systemd/system/$(basename "$1")"
	sed -i -e "s#/usr/sbin/#$prefix/sbin/#g" -e "s#/usr/bin/#$prefix/bin/#g" -e "s#/usr/libexec/#$prefix/libexec/#g" \
		"$destdir$prefix/lib/systemd/system/$(basename "$1")"
}

put 0755 "$bin/gpushare" bin/gpushare
put 0755 "$bin/gpushared" sbin/gpushared
for program in gpushare-cli gpushare-nvml gpushare-thaw gpushare-start gpushare-front gpushare-plot; do
	put 0755 "$bin/$program" "libexec/gpushare/$program"
done
for unit in "$here"/systemd/*; do
	put_unit "$unit"
done
# Units of an earlier version. Slurm does not start next to what they mount.
rm -f "$destdir$prefix"/lib/systemd/system/run-gpushare-descent.mount "$destdir$prefix"/lib/systemd/system/run-gpushare-moves.mount
put 0755 "$here/generator/gpushare-generator" lib/systemd/system-generators/gpushare-generator
put 0644 "$here/sysusers.d/gpushare.conf" lib/sysusers.d/gpushare.conf
put 0644 "$here/tmpfiles.d/gpushare.conf" lib/tmpfiles.d/gpushare.conf
put 0644 "$here/preset/90-gpushare.preset" lib/systemd/system-preset/90-gpushare.preset
put 0644 "$here/catalog/gpushare.catalog" lib/systemd/catalog/gpushare.catalog
# Man pages, completions and licences.
for file in $(cd "$bin/share" && find . -type f | sed 's#^\./##' | LC_ALL=C sort); do
	put 0644 "$bin/share/$file" "share/$file"
done
cd "$here/.."
# Pages link to each other, to the schema, and the README to what developers read.
for file in README.md CHANGELOG.md SECURITY.md CONTRIBUTING.md ARCHITECTURE.md HACKING.md SCOPE.md STYLE.md LICENSE docs/*.md docs/maintainers/*.md docs/status.svg docs/top.svg docs/spec.schema.json; do
	put 0644 "$file" "share/doc/gpushare/$file"
done
for file in examples/*.yaml; do
	put 0644 "$file" "share/gpushare/$file"
done
for file in examples/monitoring/* examples/ansible/* examples/slurm/spank/*; do
	put 0644 "$file" "share/gpushare/$file"
done
for file in examples/prolog/* examples/slurm/*.sh; do
	put 0755 "$file" "share/gpushare/$file"
done
# What a profile of AppArmor confines is at its path. The profiles are not below PREFIX: the host reads them in one place.
put_profile() { # put_profile SOURCE TARGET
	install -D -m 0644 "$1" "$destdir$2"
	sed -i -e "s#/usr/libexec/#$prefix/libexec/#g" -e "s#/usr/{sbin,bin}/gpushared#$prefix/{sbin,bin}/gpushared#g" "$destdir$2"
	echo "$(echo "${prefix#/}" | sed 's#[^/][^/]*#..#g')$2" >>"$record"
}
for profile in "$here"/apparmor/gpushare*; do
	put_profile "$profile" "/etc/apparmor.d/$(basename "$profile")"
done
if [ ! -e "$destdir/etc/gpushare/gpushared.yaml" ]; then
	install -D -m 0644 "$here/etc/gpushared.yaml" "$destdir/etc/gpushare/gpushared.yaml"
fi
