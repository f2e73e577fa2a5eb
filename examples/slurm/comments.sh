#!/bin/sh
# Writes the AdminComment of jobs of Slurm that use more GPU memory than they have, while they run: Slurm refuses it when they have ended.
# gpushare ends such a job after its 'overuse: {grace}'. One call of scontrol for each such job, and none for others.
#
# It runs on each node, as root, until gpushared ends: as a service with Restart=always.
set -u
PATH=$PATH:/usr/local/bin:/opt/slurm/bin
cluster=${1:?usage: comments.sh CLUSTER}
limit=${GPUSHARE_PROLOG_SECONDS:-5} # for each command

comment() { # comment LEASE MESSAGE
	job=$(timeout "$limit" gpushare lease show "$1" 2>/dev/null | sed -n "s/^key  *slurm:$cluster:\([0-9][0-9]*\):.*/\1/p")
	[ -n "$job" ] || return 0
	timeout "$limit" scontrol update jobid="$job" admincomment="gpushare: $2" || echo "job $job has no AdminComment: $2" >&2
}

gpushare events --json |
	sed -un 's/.*"kind":"memory\.over".*"lease":"\([a-z0-9-]*\)","message":"\([^"\\]*\).*/\1 \2/p' |
	while read -r lease message; do comment "$lease" "$message"; done
