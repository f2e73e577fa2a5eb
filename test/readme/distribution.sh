#!/bin/bash
# distribution.sh [OPTION...] SUITE does what README.md says, on a fresh Debian (bookworm, trixie) or Ubuntu (noble): it makes
# the smallest root file system of that distribution, installs git, make and then what 'make' asks for, clones the committed tree into
# the home of each user, and runs the commands there. It prints a table, and fails if a command does.
#
#   -u USER     root, ann (uid 1001, bash) or bo (uid 70001, sh, umask 077). Several, if repeated. Without: all
#   -c COMMAND  runs in the clone. Several, one after the other, if repeated. Without: 'make demo' and 'make test'
#   -d NAME     the directory of the clone in the user's home. Without: gpushare
#   -t MINUTES  the deadline of a command. Without: 30
#   -w          warm: clone and caches of the run before stay. Without, each command begins with an empty home
#
# Everything is below build/readme/SUITE: logs, and .system, the root file system, which is made again when need.sh changes. It needs
# root. A command has mounts of its own, and users have processes of their own, which end with it. The network is that of the host.
set -euo pipefail
self=$(realpath "$0")

fail() {
	echo "distribution.sh: $*" >&2
	exit 1
}

# distribution.sh --inside ROOT COMMAND... is the first process of the namespaces that inside makes. It fails too if a process is left.
if [ "${1:-}" = --inside ]; then
	root=$2
	shift 2
	mount --bind "$root" "$root" # The root of a container is a mount.
	mount -t proc proc "$root/proc"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
	mount -t tmpfs -o mode=0755 tmpfs "$root/run"
	code=0
	# The shell ignores these in what it starts in the background.
	env --default-signal=INT,QUIT chroot "$root" "$@" || code=$?
	# What has just ended may still be there.
	for _ in {1..50}; do
		left=
		for p in $(find "$root"/proc/[0-9]*/root -maxdepth 0 -lname "$root" 2>/dev/null || true); do
			left="$left, pid $(basename "${p%/root}") ($(cat "${p%/root}/comm" 2>/dev/null || true))"
		done
		[ -n "$left" ] || exit "$code"
		sleep 0.1
	done
	echo "distribution.sh: it ended, and left ${left#, }"
	[ "$code" != 0 ] || code=99
	exit "$code"
fi

users=() commands=() directory=gpushare minutes=30 warm=
while getopts u:c:d:t:w option; do
	case $option in
	u) users+=("$OPTARG") ;;
	c) commands+=("$OPTARG") ;;
	d) directory=$OPTARG ;;
	t) minutes=$OPTARG ;;
	w) warm=yes ;;
	*) fail "usage: distribution.sh [-u USER] [-c COMMAND] [-d NAME] [-t MINUTES] [-w] SUITE" ;;
	esac
done
shift $((OPTIND - 1))
suite=${1:-}
[ ${#users[@]} -gt 0 ] || users=(root ann bo)
[ ${#commands[@]} -gt 0 ] || commands=('make demo' 'make test')
case $suite in
bookworm | trixie) origin=Debian keys=debian-archive-keyring keyring=$keys ;;
noble) origin=Ubuntu keys=ubuntu-archive-keyring keyring='ubuntu-keyring (Debian 12 has it in bookworm-backports)' ;;
*) fail "there is no suite '$suite': bookworm, trixie or noble" ;;
esac
keys=/usr/share/keyrings/$keys.gpg
for u in "${users[@]}"; do
	case $u in root | ann | bo) ;; *) fail "there is no user '$u': root, ann or bo" ;; esac
done
[ "$(id -u)" = 0 ] || fail "it needs root: it mounts, and makes files of other users"
for tool in mmdebstrap git unshare setpriv timeout flock; do
	command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install mmdebstrap git util-linux"
done
[ -e "$keys" ] || fail "the keys of $origin's archive are missing ($keys): apt-get install $keyring"

tree=$(realpath "$(dirname "$self")/../..")
base=$tree/build/readme/$suite
root=$base/.system # Behind a dot, so that no pattern of Go packages finds the sources in it.
mkdir -p "$base/logs"
exec 9>"$base/lock"
flock -n 9 || fail "another one uses $base"
for signal in INT TERM HUP; do
	trap "fail 'it was ended by SIG$signal'" $signal
done

# bounded MINUTES COMMAND...: its namespaces, with each process and each mount in them, end at the deadline, and when this script does.
bounded() {
	setpriv --pdeathsig KILL timeout --signal=KILL "${1}m" \
		setpriv --pdeathsig KILL unshare --mount "${processes[@]}" --fork --kill-child --propagation private "${@:2}" </dev/null 9>&- &
	wait $! # A signal interrupts it.
}
processes=(--pid)

# end_all ends what is left in the root file system, of a command that had no processes of its own. What is ended may start another before.
end_all() {
	local p left
	for _ in {1..50}; do
		left=$(find /proc/[0-9]*/root -maxdepth 0 -lname "$root" 2>/dev/null || true)
		[ -n "$left" ] || return 0
		for p in $left; do
			kill -KILL "$(basename "${p%/root}")" 2>/dev/null || true
		done
		sleep 0.1
	done
}
end_all # A run that was killed could not.
trap end_all EXIT
inside() { bounded "$1" "$self" --inside "$root" "${@:2}"; }
administer() {
	inside "$1" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -ec "$2"
}

# fresh USER empties the home, and clones.
fresh() {
	local home=$root/home/$1
	[ "$1" != root ] || home=$root/root
	find "$home" -mindepth 1 -maxdepth 1 ! -name .profile ! -name .bashrc -exec rm -rf --one-file-system {} +
	find "$root/tmp" "$root/var/tmp" -mindepth 1 -delete
	inside 5 su - "$1" -c "git -c advice.detachedHead=false -c init.defaultBranch=main clone -q /srv/gpushare.bundle '$directory'"
}

# make_system makes the root file system. Of the host's apt it has the mirror, a proxy, and what the host says of stale mirrors.
make_system() {
	local mirror option options=() log=$base/logs/system.log
	mirror=$(apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)' 2>/dev/null |
		sed -n "s/^$origin|//p" | grep -v security | sort -u | head -n 1 || true)
	while read -r option; do
		options+=(--aptopt="$option")
	done < <(apt-config dump | grep -E '^Acquire::(Check-(Valid-Until|Date)|https?::Proxy(::[^ ]+)?|Retries) ' || true)
	rm -rf --one-file-system "$root"
	# What is only recommended is not there: what is asked for must be enough.
	bounded 15 sh -c 'mount -t proc proc /proc && exec "$@"' sh mmdebstrap --quiet --mode=root --variant=minbase --include=apt --format=directory \
		--keyring="$keys" --aptopt='APT::Install-Recommends "false"' "${options[@]}" "$suite" "$root" ${mirror:+"$mirror"} >"$log" 2>&1 ||
		fail "cannot make $suite from ${mirror:-the archive of $origin}: $(tail -n 5 "$log")"
	cp --remove-destination /etc/resolv.conf /etc/hosts "$root/etc/"
	env | grep -E '^(https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY|GOPROXY|GOSUMDB|GONOSUMDB)=' >"$root/etc/environment" || true
	administer 10 'apt-get update -q; apt-get install -y -q git make' >>"$log" 2>&1 || fail "cannot install git and make: $(tail -n 5 "$log")"
	administer 1 'useradd --create-home --uid 1001 --shell /bin/bash ann
		useradd --create-home --uid 70001 --shell /bin/sh --key UID_MAX=70001 bo
		echo umask 077 >>/home/bo/.profile'
	bundle
	fresh root
	local command
	for _ in 1 2 3; do
		! inside 10 su - root -c "cd '$directory' && make need" >"$base/logs/need.log" 2>&1 || return 0
		cat "$base/logs/need.log"
		grep -q '^    ' "$base/logs/need.log" || break
		while read -r command; do
			administer 10 "$command" >>"$log" 2>&1 || fail "what make asks for fails: $command: $(tail -n 5 "$log")"
		done < <(sed -n 's/^    //p' "$base/logs/need.log")
		# A network may have an authority of its own, which the host trusts.
		[ ! -e "$root/etc/ssl/certs/ca-certificates.crt" ] || cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
	done
	fail "make asks for more than it says how to install: $(cat "$base/logs/need.log")"
}

# A bundle is a file: git does not refuse it as a repository of another user.
bundle() {
	git -c safe.directory='*' -C "$tree" bundle create -q "$root/srv/gpushare.bundle" HEAD
	chmod 0644 "$root/srv/gpushare.bundle"
}

recipe=$({ declare -f make_system; git -c safe.directory='*' -C "$tree" show HEAD:packaging/need.sh; } | sha256sum)
if [ "$(cat "$base/recipe" 2>/dev/null)" != "$recipe" ]; then
	rm -f "$base/recipe"
	began=$(date +%s)
	make_system
	echo "$recipe" >"$base/recipe"
	echo "$root was made in $((($(date +%s) - began) / 60 + 1)) minutes"
fi
bundle

rows=() failed=0
for u in "${users[@]}"; do
	for c in "${commands[@]}"; do
		log=$base/logs/$u-$(printf %s "$c" | tr -cs 'A-Za-z0-9' - | cut -c 1-60).log
		[ -n "$warm" ] || fresh "$u"
		# What root enforces is recorded by the kernel, with the pids of the host: in a namespace of its own gpushared enforces less, and
		# says so.
		[ "$u" != root ] || processes=()
		began=$(date +%s) code=0
		inside "$minutes" su - "$u" -c "cd '$directory' && $c" >"$log" 2>&1 || code=$?
		duration=$(($(date +%s) - began))
		[ "$u" != root ] || end_all
		processes=(--pid)
		case $code in
		0) result=passed ;;
		99) result="processes are left: $log" ;;
		124 | 137) result="not ended after $minutes minutes: $log" ;;
		*) result="exit code $code: $log" ;;
		esac
		[ "$code" = 0 ] || failed=1
		rows+=("$(printf '%-5s %-30s %3d.%d  %s' "$u" "$c" $((duration / 60)) $((duration % 60 / 6)) "$result")")
		echo "$suite: ${rows[-1]}"
	done
done
printf '\n%s, %s\n' "$(. "$root/etc/os-release" && echo "$PRETTY_NAME")" "$(git -c safe.directory='*' -C "$tree" rev-parse --short HEAD)"
printf '%-5s %-30s %5s  %s\n' user command min. result
printf '%s\n' "${rows[@]}"
exit $failed
