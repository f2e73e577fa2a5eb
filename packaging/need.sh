#!/bin/sh
# Says which command installs what a build needs, and stops there.
set -u
missing=''
for tool in "$@"; do
	command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if command -v gcc >/dev/null 2>&1 && ! printf '#include <stdio.h>\n#include <pthread.h>\nint main(void){return 0;}\n' | gcc -fsyntax-only -x c - 2>/dev/null; then
	missing="$missing libc6-dev"
fi
[ -z "$missing" ] && exit 0

packages=''
for m in $missing; do
	case $m in
	go) echo "Go is missing: install Go 1.26 or newer from https://go.dev/dl/" >&2 ;;
	*) packages="$packages $m" ;;
	esac
done
if [ -n "$packages" ]; then
	if command -v dnf >/dev/null 2>&1; then
		command="dnf install$(printf '%s' "$packages" | sed 's/libc6-dev/glibc-devel/')"
	else
		command="apt-get install$packages"
	fi
	echo "missing:$packages. Install with: sudo $command" >&2
fi
exit 1
