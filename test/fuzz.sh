#!/bin/sh
# fuzz.sh runs every fuzz target for FUZZTIME, 30 s by default. It fails if there is no target.
set -eu
cd "$(dirname "$0")/.."
targets=0
for dir in $(find . -name '*_test.go' -exec grep -l '^func Fuzz' {} + | xargs -n 1 dirname | sort -u); do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' "$dir"/*_test.go); do
		echo "=== $dir $target"
		"${GO:-go}" test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "$dir"
		targets=$((targets + 1))
	done
done
echo "$targets targets"
[ "$targets" -gt 0 ]
