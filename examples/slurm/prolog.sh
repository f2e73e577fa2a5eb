#!/bin/sh
# Prolog of Slurm from 24.05 on, with PrologFlags=Alloc,Contain,RunInJob: gives each job with shards one lease, in the cgroup of the job.
#
# Each shard is 1 GiB of GPU memory, as 'gpushare slurm gres' prints them. The grant must be of one GPU: it is the shared one of the node.
# It always exits with 0: another code drains the node. A job without a lease runs; why it has none is in the journal.
set -u
tenant=${GPUSHARE_TENANT:-slurm} grant=${GPUSHARE_GRANT:-jobs} # of the spec
say() { logger -t gpushare-prolog "job ${SLURM_JOB_ID:-}: $*" 2>/dev/null || echo "gpushare prolog: $*" >&2; }

shards=$(timeout 2 scontrol -d -o show job "$SLURM_JOB_ID" | tr ' ' '\n' | sed -n 's/^JOB_GRES=.*shard\(:[^:,]*\)\{0,1\}:\([0-9]*\).*/\2/p' | tail -n 1)
[ -n "$shards" ] || exit 0
cgroup=$(sed -n 's|^0::\(.*/job_[^/]*\).*|\1|p' /proc/self/cgroup)
[ -n "$cgroup" ] || {
	say "it has no cgroup: write PrologFlags=Alloc,Contain,RunInJob"
	exit 0
}
why=$(timeout 2 gpushare lease attach --key "slurm:$SLURM_CLUSTER_NAME:$SLURM_JOB_ID:${SLURM_JOB_RESTART_COUNT:-0}" \
	--user "$SLURM_JOB_UID" --account "${SLURM_JOB_ACCOUNT:-}" --tenant "$tenant" --grant "$grant" \
	--gpu-memory "${shards}GiB" --cgroup "$cgroup" 2>&1 >/dev/null) || say "it has no lease: $why"
exit 0
