#!/bin/sh
# ran.sh GO test ... -run 'NAME|NAME' ... runs that command and fails when one of the names is of no test that ran: 'go test'
# itself says "no tests to run" then and is content. Without -run at least one test must have run. Who was skipped did not
# run. A NAME is the beginning of a test's name.
set -eu

names= previous=
for word; do
	[ "$previous" != -run ] || names=$word
	previous=$word
done

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# A pipe would hide how the command ended.
{ "$@" -v 2>&1 || echo "$?" >"$out/code"; } | tee "$out/log"
[ ! -e "$out/code" ] || exit "$(cat "$out/code")"

# Not those that are indented: they are parts of tests.
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
