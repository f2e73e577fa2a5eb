#!/bin/sh
# ansiblelint.sh DIRECTORY gets ansible-lint of the host's Debian with what it needs and the host lacks, below DIRECTORY. It runs with
# the host's Python.
set -eu
out=$1 what=ansible-lint
. ./apt.sh

for tool in apt-get dpkg-deb /usr/bin/python3; do
	command -v "$tool" >/dev/null || die "$tool is missing, so this host is not Debian"
done
needed=$(apt-get install -s --no-install-recommends ansible-lint 2>/dev/null | sed -n 's/^Inst \([^ ]*\).*/\1/p')
[ -n "$needed" ] || die "no package ansible-lint in the lists of the host's apt (apt-get update)"
mkdir -p "$work/debs" "$work/root"
# shellcheck disable=SC2086 # it is a list of packages
(cd "$work/debs" && apt-get download -qq -o APT::Sandbox::User=root $needed) || die "cannot download it"
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
place "$work/root" "$out"
