#!/bin/sh
# ansible.sh DIRECTORY gets ansible-core of Debian's bookworm (2.14) and trixie (2.19), below DIRECTORY/2.14 and
# DIRECTORY/2.19. They run with the host's Python.
set -eu
out=$1 what=ansible-core
. ./apt.sh

for tool in apt-get dpkg-deb /usr/bin/python3; do
	command -v "$tool" >/dev/null || die "$tool is missing, so this host is not Debian"
done
[ -n "$mirror" ] || die "the host's apt lists no mirror of Debian (apt-get update)"
/usr/bin/python3 -c 'import jinja2, packaging, yaml' || die "apt-get install python3-jinja2 python3-packaging python3-yaml"

for release in bookworm:2.14 trixie:2.19; do
	suite=${release%:*} version=${release#*:}
	mkdir -p "$work/debs-$suite" "$work/root/$version"
	apt "$suite" main update -o APT::Update::Error-Mode=any || die "cannot read $suite from $mirror: check the network"
	(cd "$work/debs-$suite" && apt "$suite" main download ansible-core) || die "no package ansible-core in $suite at $mirror"
	dpkg-deb -x "$work/debs-$suite"/ansible-core_*.deb "$work/root/$version"
done
place "$work/root" "$out"
