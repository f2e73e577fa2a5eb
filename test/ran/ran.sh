#!/bin/sh
# ran.sh GO test ... -run 'NAME|NAME' ... runs that command and fails if no test ran whose name begins with one of the
# NAMEs: 'go test' only prints "no tests to run" and succeeds. Without -run at least one test must have run. A skipped test
# did not run.
set -eu

names= previous=
for word; do
	[ "$previous" != -run ] || names=$word
	previous=$word
done

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# A pipe would hide the exit code of the command.
{ "$@" -v 2>&1 || echo "$?" >"$out/code"; } | tee "$out/log"
[ ! -e "$out/code" ] || exit "$(cat "$out/code")"

# Indented lines are subtests.
sed -n 's/^--- PASS: \([^ ]*\) .*/\1/p' "$out/log" >"$out/ran"
[ -s "$out/ran" ] || {
	echo "ran.sh: no test ran: $*" >&2
	exit 1
}
rest=$names
while [ -n "$rest" ]; do
	name=${rest%%|*}
	case $rest in *'|'*) rest=${rest#*|} ;; *) rest= ;; esac
	grep -q "^$name" "$out/ran" || {
		echo "ran.sh: no test ran whose name begins with $name: $*" >&2
		exit 1
	}
done
