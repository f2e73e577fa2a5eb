#!/bin/sh
# lint.sh [fix] checks the code against .golangci.yml; with fix it rewrites what the linter can rewrite. The linter is a Go
# module of a pinned version, built once into build/tools through the Go proxy.
set -eu
version=v2.15.0
cd "$(dirname "$0")/.."
tools=$PWD/build/tools
linter=$tools/golangci-lint-$version

if [ ! -x "$linter" ]; then
	echo "lint.sh: building golangci-lint $version (once, about a minute)"
	mkdir -p "$tools"
	GOFLAGS='' CGO_ENABLED=0 GOBIN=$tools go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
	mv "$tools/golangci-lint" "$linter"
fi

# The scripts first: their check is fast.
for script in packaging/*.sh packaging/scripts/* gpusim/*.sh test/ran/*.sh test/tools/*.sh examples/prolog/*.sh examples/slurm/*.sh; do
	[ ! -f "$script" ] || sh -n "$script"
done
for script in .ci/run test/readme/*.sh test/vm/*.sh test/vm/guest/*.sh test/vm/guest/phases/*.sh test/engines/guest/*.sh; do
	[ ! -f "$script" ] || bash -n "$script"
done

# With -trimpath the build cache shares what cgo wrote between checkouts of different paths, and the linter then opens files
# of another checkout. The linter's own cache does not tell checkouts apart either.
GOFLAGS=$(printf %s "${GOFLAGS:-}" | sed 's/-trimpath\(=[a-z]*\)\{0,1\}//g')
export GOFLAGS GOLANGCI_LINT_CACHE="$PWD/build/lint-cache"

# go-nvml still names functions that its header calls deprecated.
export CGO_CFLAGS='-O2 -Wno-deprecated-declarations'
# The driver of Kubernetes is a module of its own, which is built without cgo.
case ${1:-} in
fix)
	"$linter" run --fix ./...
	cd kubelet && CGO_ENABLED=0 exec "$linter" run --fix --config ../.golangci.yml ./...
	;;
'')
	"$linter" run --max-issues-per-linter 0 --max-same-issues 0 ./...
	cd kubelet && CGO_ENABLED=0 exec "$linter" run --max-issues-per-linter 0 --max-same-issues 0 --config ../.golangci.yml ./...
	;;
*)
	echo "lint.sh: usage: lint.sh [fix]" >&2
	exit 2
	;;
esac
