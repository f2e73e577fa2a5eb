#!/bin/sh
# ssh.sh DIRECTORY gets Debian's sshd (bookworm), below DIRECTORY/usr/sbin, with the library that it needs and its version in
# DIRECTORY/version. It is not installed: a package of sshd starts it.
set -eu
out=$1 what="sshd"
. ./apt.sh

for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || die "$tool is missing, so this host is not Debian"
done
[ -n "$mirror" ] || die "the host's apt lists no mirror of Debian (apt-get update)"

mkdir -p "$work/debs" "$work/root"
apt bookworm main update -o APT::Update::Error-Mode=any || die "cannot read main of bookworm from $mirror: check the network"
for package in openssh-server libwrap0; do
	(cd "$work/debs" && apt bookworm main download "$package") || die "no package $package in main of bookworm at $mirror"
	dpkg-deb -x "$work/debs/$package"_*.deb "$work/root"
done
dpkg-deb -f "$work/debs"/openssh-server_*.deb Version >"$work/root/version"
place "$work/root" "$out"
