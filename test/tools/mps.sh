#!/bin/sh
# mps.sh DIRECTORY gets NVIDIA's MPS control programs of the driver branches that Debian has: 535 (bookworm) and 550
# (trixie), below DIRECTORY/535 and DIRECTORY/550, with their versions in the file version there.
#
# They are in Debian's section non-free: they are downloaded by the name of their package for the tests alone, and never part
# of this repository. They start without a GPU and without the driver's library.
set -eu
out=$1 what="the MPS control programs"
. ./apt.sh

for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || die "$tool is missing, so this host is not Debian"
done
[ -n "$mirror" ] || die "the host's apt lists no mirror of Debian (apt-get update)"

for release in bookworm:535 trixie:550; do
	suite=${release%:*} branch=${release#*:}
	mkdir -p "$work/debs-$branch" "$work/root/$branch"
	apt "$suite" non-free update -o APT::Update::Error-Mode=any ||
		die "cannot read non-free of $suite from $mirror: check the network"
	(cd "$work/debs-$branch" && apt "$suite" non-free download nvidia-cuda-mps) ||
		die "no package nvidia-cuda-mps in non-free of $suite at $mirror"
	dpkg-deb -x "$work/debs-$branch"/nvidia-cuda-mps_*.deb "$work/root/$branch"
	dpkg-deb -f "$work/debs-$branch"/nvidia-cuda-mps_*.deb Version >"$work/root/$branch/version"
done
place "$work/root" "$out"
