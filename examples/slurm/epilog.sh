#!/bin/sh
# Epilog of Slurm: releases the lease that prolog.sh took for the job, and says why gpushare ended processes of it. A lease whose last
# process ended has ended already.
set -u
key=slurm:$SLURM_CLUSTER_NAME:$SLURM_JOB_ID:${SLURM_JOB_RESTART_COUNT:-0}
timeout 2 gpushare lease release --missing-ok --key "$key" >/dev/null 2>&1 ||
	logger -t gpushare-epilog "the lease of $key was not released" 2>/dev/null
exit 0
