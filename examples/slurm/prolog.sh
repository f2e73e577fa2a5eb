#!/bin/sh
# Prolog of Slurm from 24.05 on, with PrologFlags=Alloc,Contain,RunInJob: gives each job with shards one lease, in the cgroup of the job.
#
# Each shard is 1 GiB of GPU memory, as 'gpushare slurm gres' prints them. The grant must be of one GPU: it is the shared one of the node.
# It always exits with 0: another code drains the node. A job without a lease runs; why it has none is in the journal.
set -u
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin:/opt/slurm/bin # Slurm gives a Prolog none.
export PATH
tenant=${GPUSHARE_TENANT:-slurm} grant=${GPUSHARE_GRANT:-jobs} # of the spec
say() { timeout 2 logger -t gpushare-prolog "job ${SLURM_JOB_ID:-}: $*" 2>/dev/null || echo "gpushare prolog: $*" >&2; }
without() {
	say "it has no lease: $*"
	exit 0
}

# What a job requests on each node. Nothing in this line is free text of the user, as the name and the comment of a job are.
request=$(timeout 2 squeue -h -j "$SLURM_JOB_ID" -o '%A %b') || without "squeue did not say what it requests"
request=$(printf '%s\n' "$request" | sed -n "s|^$SLURM_JOB_ID ||p" | tr ',' '\n' | sed -n 's|^gres[/:]shard||p')
[ -n "$request" ] || exit 0
case $request in
*[!A-Za-z0-9:._-]*) without "its shards are not one number: $request" ;;
:*) shards=${request##*:} ;;
*) shards=1 ;;
esac
case $shards in '' | 0* | *[!0-9]*) without "its shards are not one number: $request" ;; esac
cgroup=$(sed -n 's|^0::\(.*/job_[^/]*\).*|\1|p' /proc/self/cgroup)
[ -n "$cgroup" ] || without "it has no cgroup: write PrologFlags=Alloc,Contain,RunInJob"
# Where Slurm does not know the accounts, a user may write any text for one.
account=${SLURM_JOB_ACCOUNT:-}
case $account in
*[!A-Za-z0-9:._@+=/-]*)
	say "its account is left out: it has other characters than letters, digits and :._@+=/-"
	account=
	;;
esac
[ "${#account}" -le 64 ] || account=
why=$(timeout 2 gpushare lease attach --key "slurm:$SLURM_CLUSTER_NAME:$SLURM_JOB_ID:${SLURM_JOB_RESTART_COUNT:-0}" \
	--user "$SLURM_JOB_UID" --account "$account" --tenant "$tenant" --grant "$grant" \
	--gpu-memory "${shards}GiB" --cgroup "$cgroup" 2>&1 >/dev/null)
case $? in
0) ;;
124) say "it may have no lease: gpushare did not answer within 2 s" ;;
*) without "$why" ;;
esac
exit 0
