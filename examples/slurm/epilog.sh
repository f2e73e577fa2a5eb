#!/bin/sh
# Epilog of Slurm: releases the lease that prolog.sh took for the job. A lease whose last process ended has ended already.
set -u
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin # Slurm gives an Epilog none.
export PATH
key=slurm:$SLURM_CLUSTER_NAME:$SLURM_JOB_ID:${SLURM_JOB_RESTART_COUNT:-0}
timeout 2 gpushare lease release --missing-ok --key "$key" >/dev/null 2>&1 ||
	timeout 2 logger -t gpushare-epilog "the lease of $key was not released" 2>/dev/null
exit 0
