#!/bin/sh
# security.sh SCORES [ROOT] compares the exposure of every gpushare service, as systemd-analyze computes it below ROOT or for
# the installed units, with SCORES. It fails if a score is worse, or if it is better and SCORES is not updated. SCORES has a
# reason for each setting that is less strict than possible, and no other reasons.
set -eu
scores=$1
root=${2:-}
export LC_ALL=C
version=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
failed=0
say() {
	echo "security.sh: $*" >&2
	failed=1
}

analyze() { # analyze UNIT OPTION...
	unit=$1
	shift
	if [ -n "$root" ]; then
		systemd-analyze security --offline=true --root="$root" --no-pager "$@" "$unit"
	else
		systemd-analyze security --no-pager "$@" "$unit"
	fi
}

for file in "$root"/usr/lib/systemd/system/gpushare*.service; do
	unit=$(basename "$file")
	row=$(grep "^$unit " "$scores" || true)
	if [ -z "$row" ]; then
		say "$unit has no row in $scores"
		continue
	fi
	# "unit 252:4.0 257:4.1": versions check different settings, so their scores differ.
	want=$(echo "$row" | tr ' ' '\n' | sed -n "s/^$version://p")
	got=$(analyze "$unit" 2>&1 | sed -n 's/.*exposure level for [^:]*: \([0-9.]*\) .*/\1/p')
	if [ -z "$got" ]; then
		say "$unit has no score: $(analyze "$unit" 2>&1 | tail -n 1)"
		continue
	fi
	tenths=$(echo "$got" | tr -d .)
	echo "$unit: $got (systemd $version)"
	if [ -z "$want" ]; then
		# A version without a score: the worst of the known scores, and a margin for settings that it checks in addition.
		want=$(echo "$row" | tr ' ' '\n' | sed -n 's/^[0-9]*://p' | sort -n | tail -n 1)
		[ "$tenths" -le $(($(echo "$want" | tr -d .) + 3)) ] || say "$unit is exposed to $got with systemd $version, and to $want with the versions in $scores"
		continue
	fi
	if [ "$tenths" -gt "$(echo "$want" | tr -d .)" ]; then
		say "$unit is worse than committed: $got, and $want in $scores"
	elif [ "$tenths" -lt "$(echo "$want" | tr -d .)" ]; then
		say "$unit is better than committed: write $version:$got instead of $version:$want in $scores"
	fi
	loose=$(analyze "$unit" --json=short | tr '{' '\n' | sed -n 's/.*"name":"\([^"]*\)".*"exposure":"[0-9.]*".*/\1/p' | sort)
	reasons=$(awk -v u="$unit" '/^[^ \t#]/ { on = ($1 == u) } on && /^[ \t]/ { print $1 }' "$scores" | sort)
	for name in $loose; do
		echo "$reasons" | grep -qxF -- "$name" || say "$unit: $name is not set, and $scores has no reason for it"
	done
	[ "$version" != 252 ] || for name in $reasons; do
		echo "$loose" | grep -qxF -- "$name" || say "$unit: $name is set, and $scores still has a reason why it is not"
	done
done
exit $failed
