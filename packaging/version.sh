#!/bin/sh
# version.sh prints the version of what is built: that of internal/version, and behind a plus the commit, unless the commit has the
# tag of that version and nothing was changed. By semantic versioning, what is behind the plus orders no version.
set -eu
cd "$(dirname "$0")/.."
number=$(sed -n 's/^const Number = "\(.*\)"$/\1/p' internal/version/version.go)
if [ ! -e .git ]; then
	echo "$number" # Sources without a history are those of a release, also below a directory with another history.
	exit 0
fi
# git may be missing, or refuse a tree of another user (safe.directory): then it is not known what the sources are.
if ! commit=$(git rev-parse --short=8 HEAD 2>/dev/null); then
	echo "$number+unknown"
	exit 0
fi
changed=
git diff --quiet HEAD -- 2>/dev/null || changed=.dirty
if [ -z "$changed" ] && git tag --points-at HEAD | grep -qxF "$number"; then
	echo "$number"
else
	echo "$number+$commit$changed"
fi
