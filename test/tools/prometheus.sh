#!/bin/sh
# prometheus.sh DIRECTORY gets prometheus and promtool of Debian's package prometheus (bookworm), below DIRECTORY/usr/bin, with
# their version in DIRECTORY/version.
set -eu
out=$1 what="Prometheus"
. ./apt.sh

for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || die "$tool is missing, so this host is not Debian"
done
[ -n "$mirror" ] || die "the host's apt lists no mirror of Debian (apt-get update)"

mkdir -p "$work/debs" "$work/unpacked" "$work/root/usr"
apt bookworm main update -o APT::Update::Error-Mode=any || die "cannot read main of bookworm from $mirror: check the network"
(cd "$work/debs" && apt bookworm main download prometheus) || die "no package prometheus in main of bookworm at $mirror"
dpkg-deb -x "$work/debs"/prometheus_*.deb "$work/unpacked"
dpkg-deb -f "$work/debs"/prometheus_*.deb Version >"$work/root/version"
mv "$work/unpacked/usr/bin" "$work/root/usr/bin"
place "$work/root" "$out"
