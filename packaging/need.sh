#!/bin/sh
# need.sh GO TOOL... fails if the build lacks one of these programs, a Go that is or loads the version in go.mod, the C library's headers,
# or the certificates with which Go trusts a proxy of modules. It prints what is missing, and behind four spaces the commands that change
# it, on the distribution that OS_RELEASE names, with the sources of apt in SOURCES: tests have others.
set -u
cd "$(dirname "$0")/.." || exit 1
go=$1
shift
required=$(sed -n 's/^go \([0-9.]*\)$/\1/p' go.mod)

reasons= packages= settings=
# lacks REASON [PACKAGE]: the package by its name in Debian.
lacks() {
	reasons="$reasons
  $1"
	packages="$packages${2:+ $2}"
}
number() { sed -n 's/^go version .*go\([0-9][0-9.]*\).*/\1/p'; }
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

for tool in "$@"; do
	command -v "$tool" >/dev/null 2>&1 || lacks "$tool is missing" "$(basename "$tool")"
done
# Debian's gcc comes without the C library's headers unless recommended packages are installed.
if ! command -v gcc >/dev/null 2>&1; then
	packages="$packages libc6-dev"
elif ! echo '#include <stdio.h>' | gcc -E -o /dev/null - 2>/dev/null; then
	lacks "the C library's headers are missing" libc6-dev
fi

# The files that Go reads.
trusts() {
	[ -z "${SSL_CERT_FILE:-}" ] || { [ -s "$SSL_CERT_FILE" ]; return; }
	for file in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/pki/tls/cacert.pem \
		/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/ssl/cert.pem; do
		[ ! -s "$file" ] || return 0
	done
	return 1
}

# setting NAME: as the installed Go has it. It could load another Go to answer.
setting() { GOTOOLCHAIN=local "$go" env "$1" 2>/dev/null; }

path=$(command -v "$go" 2>/dev/null)
installed= go_is= ready=yes
# Modules that were loaded once need no proxy.
if { [ -z "$path" ] || [ ! -d "$(setting GOMODCACHE)/cache/download" ]; } && ! trusts; then
	lacks "certificates of authorities are missing: Go loads modules by HTTPS" ca-certificates
	ready=
fi
[ -z "$path" ] || installed=$(GOTOOLCHAIN=local "$go" version 2>/dev/null | number)
if [ -z "$path" ]; then
	lacks "$go is missing"
	go_is=missing
elif [ -z "$installed" ]; then
	lacks "$path prints no version of Go"
	go_is=missing
elif older "$installed" 1.21; then
	lacks "$path is Go $installed: Go $required is needed, or one from 1.21 on, which loads it"
	go_is=old
elif [ "$ready" ] && older "$installed" "$required"; then
	# It loads the other Go now, if it may. Why it cannot, Go prints.
	if ! now=$("$go" version); then
		lacks "$path is Go $installed, and could not load Go $required from $(setting GOPROXY)"
		go_is=alone
	elif older "$(echo "$now" | number)" "$required"; then
		lacks "$path is Go $installed, and GOTOOLCHAIN forbids it to load Go $required"
		settings='
    export GOTOOLCHAIN=auto' # No package changes it.
	fi
fi
[ "$reasons" ] || exit 0

ID=unknown ID_LIKE= VERSION_CODENAME= PRETTY_NAME='this system'
release=${OS_RELEASE:-/etc/os-release}
# shellcheck source=/dev/null
[ ! -r "$release" ] || . "$release"

commands=
run() {
	commands="$commands
    $1"
}
backports=
case $ID:$VERSION_CODENAME:$go_is in
debian:bookworm:missing | debian:bookworm:old) backports=bookworm-backports ;; # Its own Go is 1.19, that of backports 1.23.
debian:trixie:old | debian:trixie:alone) backports=trixie-backports ;;         # Its own Go is 1.24, that of backports 1.27.
esac
# Backports are where the distribution is. apt itself names no place before the first 'apt-get update', as in an image for containers.
sources=${SOURCES:-/etc/apt}
[ -z "$backports" ] || mirror=$(sed -n "/^#/d; /security/d; s/.*\(https\{0,1\}:[^ ]*\).*/\1/p" "$sources"/sources.list "$sources"/sources.list.d/*.sources \
	"$sources"/sources.list.d/*.list 2>/dev/null | head -n 1)
case " $ID $ID_LIKE " in
*' debian '* | *' ubuntu '*)
	[ -z "$backports" ] ||
		run "echo 'deb ${mirror:-MIRROR} $backports main' >/etc/apt/sources.list.d/$backports.list"
	[ "$go_is$backports" != missing ] || packages="$packages golang-go"
	[ -z "$packages$backports" ] || run 'apt-get update'
	[ -z "$packages" ] || run "apt-get install -y$packages"
	[ -z "$backports" ] || run "apt-get install -y -t $backports golang-go"
	;;
*' fedora '* | *' rhel '*)
	[ "$go_is" != missing ] || packages="$packages golang"
	[ -z "$packages" ] || run "dnf install -y$(echo "$packages" | sed 's/libc6-dev/glibc-devel/')"
	;;
esac
{
	echo "cannot build:$reasons"
	if [ "$commands" ]; then
		echo "On $PRETTY_NAME root installs it with:$commands"
	elif [ "$packages" ]; then
		echo "Install with the package manager of $PRETTY_NAME what Debian has in:$packages"
	fi
	case $go_is$commands in
	missing | old*| alone*) [ "$backports" ] || echo "Go from 1.21 on loads Go $required if it can. Go $required itself is at https://go.dev/dl" ;;
	esac
	[ -z "$settings" ] || echo "Before the next 'make':$settings"
} >&2
exit 1
