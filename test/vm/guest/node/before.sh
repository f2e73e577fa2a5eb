#!/bin/bash
# Opens every GPU's node from inside every tenant's slice, as the boot left it, and writes down what came of it.
set -u
. /usr/local/lib/gpusim/lib.sh
mkdir -p /run/lab
for tenant in gpushare-vision.slice gpushare-speech.slice; do
	systemctl start "$tenant"
	for node in /var/lib/gpusim/dev/nvidia[0-9]*; do
		echo "$tenant $(basename "$node") $(open_in "$(cgroup_of "$tenant")" "$node")"
	done
done >/run/lab/before 2>&1
