#!/bin/sh
# Builds the C parts of the virtual node into a directory: the library of each driver branch, and the burn program.
# Usage: build.sh DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
mkdir -p "$out"
# The header is from go-nvml; this repository has no copy.
nvml=$(cd "$here" && ${GO:-go} list -m -f '{{.Dir}}' github.com/NVIDIA/go-nvml)/pkg/nvml
for v in 470 535 550 580 615; do
	${CC:-gcc} -std=gnu11 -O2 -g -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror -Wno-unused-parameter -Wno-deprecated-declarations \
		-DGPUSIM_DRIVER=$v -isystem "$nvml" \
		-Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script="$here/shim/$v.map" -Wl,-z,defs \
		-o "$out/libnvidia-ml.so.$v.tmp$$" "$here"/shim/nvml.c "$here"/shim/mig.c "$here"/shim/none.c "$here"/shim/wire.c -ldl -lpthread
	mv "$out/libnvidia-ml.so.$v.tmp$$" "$out/libnvidia-ml.so.$v"
done
if [ -f "$here/burn/burn.c" ]; then
	${CC:-gcc} -std=gnu11 -O2 -g -Wall -Wextra -o "$out/gpusim-burn.tmp$$" "$here/burn/burn.c"
	mv "$out/gpusim-burn.tmp$$" "$out/gpusim-burn"
fi
