#!/bin/sh
# nvml.sh DIRECTORY gets NVIDIA's NVML library of the driver branches that Debian has: 535 (bookworm) and 550 (trixie), as
# DIRECTORY/535/libnvidia-ml.so.1 and DIRECTORY/550/libnvidia-ml.so.1, with their versions in the file version there.
#
# They are in Debian's section non-free: they are downloaded by the name of their package for the tests alone, and never part
# of this repository. Without the kernel's part of the driver the library says that the driver is not loaded.
set -eu
out=$1 what="NVIDIA's NVML library"
. ./apt.sh

for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || die "$tool is missing, so this host is not Debian"
done
[ -n "$mirror" ] || die "the host's apt lists no mirror of Debian (apt-get update)"

for release in bookworm:535 trixie:550; do
	suite=${release%:*} branch=${release#*:}
	mkdir -p "$work/debs-$branch" "$work/files-$branch" "$work/root/$branch"
	apt "$suite" non-free update -o APT::Update::Error-Mode=any ||
		die "cannot read non-free of $suite from $mirror: check the network"
	(cd "$work/debs-$branch" && apt "$suite" non-free download libnvidia-ml1) ||
		die "no package libnvidia-ml1 in non-free of $suite at $mirror"
	dpkg-deb -x "$work/debs-$branch"/libnvidia-ml1_*.deb "$work/files-$branch"
	library=$(find "$work/files-$branch" -type f -name 'libnvidia-ml.so.*' | head -n 1)
	[ -n "$library" ] || die "libnvidia-ml1 of $suite has no libnvidia-ml.so"
	cp "$library" "$work/root/$branch/libnvidia-ml.so.1"
	dpkg-deb -f "$work/debs-$branch"/libnvidia-ml1_*.deb Version >"$work/root/$branch/version"
done
place "$work/root" "$out"
