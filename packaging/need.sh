#!/bin/sh
# need.sh TOOL... fails if the build lacks a tool, and prints the command that installs it.
set -u
missing=
for tool in "$@"; do
	if command -v "$tool" >/dev/null 2>&1; then
		continue
	fi
	case $tool in
	go | */go) missing="$missing
  $tool is missing: install Go 1.26 or newer from https://go.dev/dl" ;;
	*) missing="$missing
  $tool is missing: apt-get install $(basename "$tool") (Debian, Ubuntu) or dnf install $(basename "$tool") (Fedora, RHEL)" ;;
	esac
done
# Debian's gcc comes without the C library's headers unless recommended packages are installed.
if command -v gcc >/dev/null 2>&1 && ! echo '#include <stdio.h>' | gcc -E -o /dev/null - 2>/dev/null; then
	missing="$missing
  the C library's headers are missing: apt-get install libc6-dev or dnf install glibc-devel"
fi
if [ -n "$missing" ]; then
	echo "cannot build:$missing" >&2
	exit 1
fi
