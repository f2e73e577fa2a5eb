#!/bin/bash
# sampler.sh OUT CGROUP FILE=VALUE... reads files of a cgroup again and again until OUT.stop exists, and records each
# wrong value. It starts no process, and pauses for a fifth of a second.
out=$1 cg=$2
shift 2
samples=0
exec 9<> <(:)
: >"$out"
while [ ! -e "$out.stop" ]; do
	for want; do
		got="(not there)"
		{ read -r got <"$cg/${want%%=*}"; } 2>/dev/null
		[ "$got" = "${want#*=}" ] || echo "$EPOCHREALTIME ${want%%=*} is '$got', not '${want#*=}'" >>"$out"
	done
	samples=$((samples + 1))
	echo $samples >"$out.samples"
	read -rt 0.2 -u 9 _
done
