#!/bin/sh
# package.sh VERSION BIN_DIR OUT_DIR writes a deb and an rpm with everything that install.sh installs, into OUT_DIR. The
# configuration of nfpm is written from what install.sh installed. Times are that of the commit (or SOURCE_DATE_EPOCH), so that
# the same sources give the same bytes. nfpm is a Go module of a pinned version, built once into build/tools.
set -eu
if [ $# -ne 3 ]; then
	echo "package.sh: usage: package.sh VERSION BIN_DIR OUT_DIR" >&2
	exit 2
fi
cd "$(dirname "$0")/.."
version=$1 bin=$2 out=$3
export LC_ALL=C
umask 022

nfpm_version=v2.43.4
nfpm=$PWD/build/tools/nfpm-$nfpm_version
if [ ! -x "$nfpm" ]; then
	echo "package.sh: building nfpm $nfpm_version (once, about half a minute)"
	mkdir -p build/tools
	GOFLAGS='' CGO_ENABLED=0 GOBIN=$PWD/build/tools go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$nfpm_version"
	mv build/tools/nfpm "$nfpm"
fi

if [ -z "${SOURCE_DATE_EPOCH:-}" ] && ! SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null); then
	echo "package.sh: cannot build packages: this is not a clone, so set SOURCE_DATE_EPOCH to the time of the sources" >&2
	exit 1
fi
export SOURCE_DATE_EPOCH
number=$(packaging/number.sh "$version")
# The newest version of the C library whose functions the only program with cgo calls.
libc=$(readelf -V "$bin/gpushare-nvml" | grep -o 'GLIBC_2\.[0-9]*' | sort -u -V | tail -n 1 | sed 's/GLIBC_//')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packaging/install.sh "$work/root" /usr "$bin"
rm "$work/root/usr/share/gpushare/installed" # The record for make uninstall.
mkdir "$work/scripts"
format=$(sed -n 's/^const Format = //p' internal/store/file.go)
for script in preinst postinst prerm postrm; do
	sed "s/@FORMAT@/$format/" "packaging/scripts/$script" >"$work/scripts/$script"
done

# contents FORMAT: zsh of Debian does not read the directory that all others read.
contents() {
	(cd "$work/root" && find . -type f -printf '%m %P\n' | sort -k 2) | while read -r mode file; do
		type= target=/$file
		case $file in
		# A profile is replaced and removed with the programs; what an administrator adds to it is in /etc/apparmor.d/local.
		etc/gpushare/*) type='type: "config|noreplace", ' ;;
		usr/share/doc/gpushare/copyright) [ "$1" = rpm ] || continue ;;
		usr/share/zsh/*) [ "$1" = rpm ] || target=/usr/share/zsh/vendor-completions/$(basename "$file") ;;
		esac
		echo "  - {src: \"$work/root/$file\", dst: \"$target\", ${type}file_info: {mode: 0$mode, owner: root, group: root}}"
	done
	[ "$1" = rpm ] || (cd "$work/debian" && find . -type f -printf '%P\n' | sort) | while read -r file; do
		echo "  - {src: \"$work/debian/$file\", dst: \"/$file\", file_info: {mode: 0644, owner: root, group: root}}"
	done
	# Directories that belong to no other package.
	(cd "$work/root" && find . -type d -path '*/gpushare*' -printf '%P\n' | sort) | while read -r dir; do
		echo "  - {dst: \"/$dir\", type: dir, file_info: {mode: 0755, owner: root, group: root}}"
	done
}

# What only Debian's tools read: a changelog in their format, a copyright that names the licence of which Debian has the text, and why
# lintian's findings are as intended.
debian=$work/debian/usr/share
mkdir -p "$debian/doc/gpushare" "$debian/lintian/overrides"
maintainer=${MAINTAINER:-gpushare maintainers <gpushare@users.noreply.github.com>}
{
	echo "gpushare ($number) unstable; urgency=medium"
	echo
	echo "  * See CHANGELOG.md in this directory."
	echo
	echo " -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$debian/doc/gpushare/changelog.gz"
sed -f packaging/debian/copyright.sed "$work/root/usr/share/doc/gpushare/copyright" >"$debian/doc/gpushare/copyright"
cp packaging/debian/lintian-overrides "$debian/lintian/overrides/gpushare"

mkdir -p "$out"
for kind in deb rpm; do
	case $kind in
	deb) depends="libc6 (>= $libc)" licence= file=gpushare_${number}_$(go env GOARCH).deb ;;
	rpm) depends="glibc >= $libc" licence='license: Apache-2.0' file=gpushare-$number-1.$(uname -m).rpm ;;
	esac
	cat >"$work/$kind.yaml" <<END
name: gpushare
arch: $(go env GOARCH)
platform: linux
version: "$number"
version_schema: none
mtime: $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
umask: 0o022
section: admin
priority: optional
maintainer: "$maintainer"
homepage: https://github.com/gpushare/gpushare
$licence
description: |-
  shares the GPUs of one host between tenants
  A daemon that partitions the GPUs of one Linux host with MIG, MPS or time
  slices, and enforces what each tenant may use: GPU memory, GPU time, CPU,
  host memory and devices. Without a spec it only observes.
depends: ["$depends", systemd]
scripts:
  preinstall: $work/scripts/preinst
  postinstall: $work/scripts/postinst
  preremove: $work/scripts/prerm
  postremove: $work/scripts/postrm
deb: {compression: gzip}
rpm: {compression: gzip, buildhost: localhost}
contents:
$(contents "$kind")
END
	"$nfpm" package --config "$work/$kind.yaml" --packager "$kind" --target "$out/$file" >"$work/nfpm.log" 2>&1 || {
		cat "$work/nfpm.log" >&2
		exit 1
	}
	echo "$out/$file"
done
