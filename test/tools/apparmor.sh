#!/bin/sh
# apparmor.sh DIRECTORY gets the compiler of AppArmor's profiles of the host's Debian, with what profiles include, below DIRECTORY.
set -eu
out=$1 what=apparmor
. ./apt.sh

for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || die "$tool is missing, so this host is not Debian"
done
mkdir -p "$work/debs" "$work/root"
(cd "$work/debs" && apt-get download -qq -o APT::Sandbox::User=root apparmor) || die "no package apparmor in the lists of the host's apt (apt-get update)"
dpkg-deb -x "$work"/debs/apparmor_*.deb "$work/root"
place "$work/root" "$out"
