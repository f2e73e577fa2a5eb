#!/bin/sh
# clients.sh DIRECTORY PYTHON installs Debian's NVML clients below a directory: usr/bin/nvtop,
# usr/lib/python3/dist-packages/pynvml.py, and their versions in the file versions. It omits what the host, or its PYTHON,
# already has.
#
# Both are free software in Debian's section contrib (nvtop in main since Debian 13), because the library that they use is
# not free. They are unpacked and not installed, because their packages depend on a driver, which the virtual node
# replaces. The host's apt does not change (apt.sh).
set -eu
out=$1 python=$2 what='the NVML clients'
. ./apt.sh

# have reports whether a package, or the needed part of it, is on this host.
have() {
	case $1 in
	nvtop) command -v nvtop ;;
	python3-pynvml) "$python" -c 'import pynvml' 2>&1 ;;
	*) [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ] ;;
	esac >/dev/null
}

suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
mkdir -p "$work/debs" "$work/root"

[ -n "$mirror" ] || { have python3-pynvml && have nvtop; } ||
	die "the host's apt lists no mirror of Debian (apt-get update): install nvtop, and nvidia-ml-py for $python"

contrib() {
	apt "$suite" contrib "$@"
}

# fetch PACKAGE: from contrib, or else from the host's apt, which is main.
fetch() {
	(
		cd "$work/debs"
		contrib download "$1" 2>"$work/contrib.err" ||
			apt-get -qq download "$1" -o APT::Sandbox::User=root 2>"$work/main.err"
	) || die "no package $1 in contrib of $suite at $mirror nor in what the host's apt lists (apt-get update): $(cat "$work/contrib.err" "$work/main.err")"
	dpkg-deb -x "$work/debs/$1"_*.deb "$work/root"
	echo "$1 $(dpkg-deb -f "$work/debs/$1"_*.deb Version)" >>"$work/root/versions"
}

: >"$work/root/versions"
needed=
for package in python3-pynvml nvtop; do
	if have "$package"; then
		echo "$package from this host" >>"$work/root/versions"
	else
		needed="$needed $package"
	fi
done
if [ -n "$needed" ]; then
	for tool in apt-get dpkg-deb dpkg-query; do
		command -v "$tool" >/dev/null || die "$tool is missing, so this host is not Debian: install nvtop, and nvidia-ml-py for $python"
	done
	contrib update -o APT::Update::Error-Mode=any ||
		die "cannot read contrib of $suite from $mirror: check the network, or install$needed"
fi
for package in $needed; do
	fetch "$package"
	[ "$package" = nvtop ] || continue # Of the dependencies of pynvml only Python is needed.
	for library in $(dpkg-deb -f "$work"/debs/nvtop_*.deb Depends | tr ',' '\n' | sed 's/^ *//; s/[ (|:].*//'); do
		have "$library" || fetch "$library"
	done
done

place "$work/root" "$out"
