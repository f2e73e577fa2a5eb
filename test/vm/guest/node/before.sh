#!/bin/bash
# Opens the node of every GPU from inside the slice of every tenant, as the boot left it, and records the results and the
# limits in force.
set -u
. /usr/local/lib/gpusim/lib.sh
mkdir -p /run/lab
: >/run/lab/limits
for tenant in gpushare-vision.slice gpushare-speech.slice; do
	systemctl start "$tenant"
	for limit in memory.max cpu.max cpu.weight pids.max; do
		echo "$tenant $limit $(cat "$cgroot$(cgroup_of "$tenant")/$limit" 2>/dev/null || echo max)" >>/run/lab/limits
	done
	for node in /var/lib/gpusim/dev/nvidia[0-9]*; do
		echo "$tenant $(basename "$node") $(open_in "$(cgroup_of "$tenant")" "$node")"
	done
done >/run/lab/before 2>&1
