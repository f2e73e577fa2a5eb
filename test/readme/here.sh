#!/bin/bash
# here.sh runs the commands of README's first lines on this host, as a new user types them: nothing is left out, and no variable is set
# that a shell does not set.
#
#   here.sh root    as root, in this checkout
#   here.sh drawn   as an ordinary user on a clean clone, in an environment that SAMPLE draws: its uid and groups, umask, language, time
#                   zone, terminal, path, and a home that is on another file system or cannot be written. It needs root, to be that user.
#
# Commands that follow run after them, in the same way.
#
# What was compiled on this host is reused, as it is when a user runs them a second time. It fails if a command fails, or takes more
# than twice the minutes that README names, or less than half.
set -euo pipefail
cd "$(dirname "$0")/../.."
who=${1:-}
if [ "$who" != root ] && [ "$who" != drawn ]; then
	echo "usage: here.sh root|drawn [COMMAND...]" >&2
	exit 2
fi
shift
more=("$@")
if [ "$(id -u)" != 0 ]; then
	echo "here.sh: it needs root" >&2
	exit 1
fi
sample=${SAMPLE:-$(($(date +%s) / 86400))}

# A row is: | `make demo` | what it does | cold minutes | warm minutes |
mapfile -t rows < <(sed -n '1,15s/^| `\(make [a-z]*\)` | [^|]* | \([0-9]*\) | \([0-9]*\) |$/\1|\2|\3/p' README.md)
if [ ${#rows[@]} != 2 ]; then
	echo "here.sh: the first lines of README.md have ${#rows[@]} commands, want 2" >&2
	exit 1
fi

# draw NAME VALUE... selects one value.
draw() {
	local name=$1 sum
	shift
	sum=$(printf '%s %s' "$sample" "$name" | sha256sum)
	shift $((16#${sum:0:8} % $#))
	printf '%s' "$1"
}

warm=yes
if [ "$who" = root ]; then
	as=() mask=$(umask) terminal=none
else
	dir=$(mktemp -d -p /var/tmp)
	mounted=
	trap '[ -z "$mounted" ] || umount "$mounted"; rm -rf "$dir"' EXIT
	chmod 755 "$dir"
	uid=$(draw uid 1000 1001 65534 3000000001)
	gid=$(draw gid "$uid" 100 65534)
	groups=$(draw groups none 4,44,100,1001 1002,3000000002)
	mask=$(draw umask 022 077 002)
	home=$(draw home usual another-file-system not-writable)
	language=$(draw language C.UTF-8 de_DE.UTF-8 tr_TR.UTF-8 unset)
	zone=$(draw zone unset Asia/Kathmandu America/St_Johns Pacific/Apia)
	user=$(draw user alice unset)
	terminal=$(draw terminal none one)
	tree=$dir/$(draw path tree "a tree with spaces")
	printf 'SAMPLE=%s: uid %s, gid %s, groups %s, umask %s, home %s, language %s, zone %s, user %s, terminal %s, path %s\n' \
		"$sample" "$uid" "$gid" "$groups" "$mask" "$home" "$language" "$zone" "$user" "$terminal" "$tree"

	git -c safe.directory='*' clone -q . "$tree"
	mkdir "$dir/home"
	if [ "$home" = another-file-system ]; then
		mount -t tmpfs -o mode=755 home "$dir/home"
		mounted=$dir/home
	fi
	if [ "$home" = not-writable ]; then
		warm=no
	else
		# Where Go looks for what was compiled and for modules. Files may belong to root: they are only read.
		mkdir -p "$dir/home/.cache" "$dir/home/go/pkg"
		for pair in "$(go env GOCACHE):$dir/home/.cache/go-build" "$(go env GOMODCACHE):$dir/home/go/pkg/mod"; do
			cp -al "${pair%%:*}" "${pair#*:}" 2>/dev/null || { rm -rf "${pair#*:}"; cp -r "${pair%%:*}" "${pair#*:}"; }
		done
		find "$dir/home" -type d -exec chown "$uid:$gid" {} +
	fi
	chown -R "$uid:$gid" "$tree"
	as=(setpriv --reuid="$uid" --regid="$gid")
	if [ "$groups" = none ]; then as+=(--clear-groups); else as+=(--groups="$groups"); fi
	as+=(env -i PATH="$PATH" HOME="$dir/home" SHELL=/bin/sh)
	[ "$language" = unset ] || as+=(LANG="$language")
	[ "$zone" = unset ] || as+=(TZ="$zone")
	[ "$user" = unset ] || as+=(USER="$user" LOGNAME="$user")
	[ "$terminal" = none ] || as+=(TERM=xterm)
	cd "$tree"
fi

# typed runs a command in a shell of its own, on a terminal of its own or none.
typed() {
	if [ "$terminal" = one ]; then
		script -qec "$(printf '%q ' "${as[@]}" sh -c "umask $mask; $1")" /dev/null </dev/null
	else
		setsid -w "${as[@]}" sh -c "umask $mask; $1" </dev/null
	fi
}

for row in "${rows[@]}"; do
	IFS='|' read -r command cold hot <<<"$row"
	minutes=$cold
	[ "$warm" = no ] || minutes=$hot
	began=$SECONDS
	printf '\n$ %s\n' "$command"
	typed "$command"
	duration=$((SECONDS - began))
	rounded=$(((duration + 59) / 60)) # as README does
	printf '%s: %d s; README says %d minutes\n' "$command" "$duration" "$minutes"
	if [ $rounded -gt $((2 * minutes)) ] || [ $((2 * rounded)) -lt "$minutes" ]; then
		echo "here.sh: '$command' needs $rounded minutes, and README says $minutes: correct README, or what made it slow" >&2
		exit 1
	fi
done
for command in "${more[@]}"; do
	printf '\n$ %s\n' "$command"
	typed "$command"
done
