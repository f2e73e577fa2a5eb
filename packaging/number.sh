#!/bin/sh
# number.sh VERSION prints the number of a package of it, by which dpkg and rpm order packages as the commits are ordered:
#
#   v1.2-rc1         1.2~rc1                     a candidate is older than the version
#   v1.2+abc         1.2~snapshot.DATE.abc       before the tag v1.2: newer than its candidates, older than the version
#   v1.2+abc         1.2+DATE.abc                after the tag
#   v1.2-3-gabc      1.2+3.gabc                  three commits after the tag, as git describes it
#
# DATE is SOURCE_DATE_EPOCH, the time of the commit: the name of a commit does not grow. Without a history there is no tag that a commit
# could come before.
set -eu
cd "$(dirname "$0")/.."
version=$1
date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)
# released reports whether the commit is the one with the tag of a version, or comes after it.
released() {
	[ -e .git ] || return 0
	git rev-parse -q --verify "refs/tags/$1" >/dev/null && git merge-base --is-ancestor "refs/tags/$1" HEAD
}
case $version in
v[0-9]*+*)
	tag=${version%%+*} commit=$(echo "${version#*+}" | tr - .)
	number=$(echo "${tag#v}" | sed 's/-/~/; s/-/./g')
	if released "$tag"; then
		echo "$number+$date.$commit"
	else
		echo "$number~snapshot.$date.$commit"
	fi
	;;
*-[0-9]*-g*) echo "${version#v}" | sed 's/-\([0-9]*\)-g/+\1.g/; s/-/./g' ;;
v[0-9]* | [0-9]*.*) echo "${version#v}" | sed 's/-/~/; s/-/./g' ;;
*) echo "0~$date.$(echo "$version" | tr - +)" ;;
esac
