#!/bin/sh
# Prolog of Slurm: gives each job with shards one lease, in the cgroup of the job. With PrologFlags=Alloc,Contain,RunInJob, from 24.05 on,
# it runs in that cgroup. Without RunInJob, with PrologFlags=Alloc,Contain, the cgroup comes later, and gpushare waits for it.
#
# Each shard is 1 GiB of GPU memory, as 'gpushare slurm gres' prints them. The grant must be of one GPU: it is the shared one of the node.
# It always exits with 0: another code drains the node. A job without a lease runs; why it has none is in the journal.
set -u
# It runs in the cgroup of the job: the SIGTERM with which Slurm ends a job is for it too, and a Prolog that ends so drains the node.
trap '' TERM
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin:/opt/slurm/bin # Slurm gives a Prolog none.
export PATH
tenant=${GPUSHARE_TENANT:-slurm} grant=${GPUSHARE_GRANT:-jobs} # of the spec
limit=${GPUSHARE_PROLOG_SECONDS:-2}                            # for each command
say() { timeout -s KILL "$limit" logger -t gpushare-prolog "job ${SLURM_JOB_ID:-}: $*" 2>/dev/null || echo "gpushare prolog: $*" >&2; }
without() {
	say "it has no lease: $*"
	exit 0
}

# What a job requests on each node. Nothing in this line is free text of the user, as the name and the comment of a job are.
request=$(timeout -s KILL "$limit" squeue -h -j "$SLURM_JOB_ID" -o '%A %b') || without "squeue did not say what it requests"
request=$(printf '%s\n' "$request" | sed -n "s|^$SLURM_JOB_ID ||p" | tr ',' '\n' | sed -n 's|^gres[/:]shard||p')
[ -n "$request" ] || exit 0
case $request in
*[!A-Za-z0-9:._-]*) without "its shards are not one number: $request" ;;
:*) shards=${request##*:} ;;
*) shards=1 ;;
esac
case $shards in '' | 0* | *[!0-9]*) without "its shards are not one number: $request" ;; esac
cgroup=$(sed -n 's|^0::\(.*/job_[^/]*\).*|\1|p' /proc/self/cgroup)
if [ -z "$cgroup" ]; then
	# slurmd keeps the scope for its jobs, next to its own unit.
	unit=$(sed -n 's|^0::\(/.*\)/[^/]*$|\1|p' /proc/self/cgroup)
	mount=$(sed -n 's|^[^ ]* \([^ ]*\) cgroup2 .*|\1|p' /proc/self/mounts | head -n 1)
	for scope in "$unit/${SLURMD_NODENAME:-}_slurmstepd.scope" "$unit/slurmstepd.scope"; do
		[ -z "$cgroup" ] && [ -d "$mount$scope" ] && cgroup=$scope/job_$SLURM_JOB_ID
	done
fi
[ -n "$cgroup" ] || without "the cgroups of jobs are not found: it is for Slurm with cgroup/v2"
# Where Slurm does not know the accounts, a user may write any text for one.
account=${SLURM_JOB_ACCOUNT:-}
case $account in
*[!A-Za-z0-9:._@+=/-]*)
	say "its account is left out: it has other characters than letters, digits and :._@+=/-"
	account=
	;;
esac
[ "${#account}" -le 64 ] || account=
attach() {
	timeout -s KILL "$limit" gpushare lease attach --key "slurm:$SLURM_CLUSTER_NAME:$SLURM_JOB_ID:${SLURM_JOB_RESTART_COUNT:-0}" \
		--user "$SLURM_JOB_UID" --account "$account" --tenant "$tenant" --grant "$grant" \
		--gpu-memory "${shards}GiB" --cgroup "$cgroup" --bind-timeout 1m 2>&1 >/dev/null
}
# The answer is lost if gpushared ends meanwhile. The same key is the same lease, so a second request does no harm.
why=$(attach) || why=$(attach)
case $? in
0) ;;
124 | 137) say "it may have no lease: gpushare did not answer within $limit s" ;;
*) without "$why" ;;
esac
exit 0
