#!/bin/sh
# Epilog of Slurm: releases the lease that prolog.sh took for the job. A lease whose last process ended has ended already.
#
# If gpushare ended processes of the job, as for its GPU memory, the reason is the last line of the job's output.
set -u
# With RunInJob it runs in the cgroup of the job: the signals with which Slurm ends a job, and those that its user sends to it, are for it
# too, and an Epilog that ends so drains the node.
trap '' TERM HUP INT QUIT USR1 USR2
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin:/opt/slurm/bin # Slurm gives an Epilog none.
export PATH
command -v gpushare >/dev/null || exit 0 # All nodes of a cluster have this script, also those without GPUs.
note=${GPUSHARE_SLURM_NOTES:-/run/gpushare-slurm}/job_$SLURM_JOB_ID # what the Prolog left
limit=${GPUSHARE_PROLOG_SECONDS:-2} # for each command
say() { timeout -s KILL "$limit" logger -t gpushare-epilog "job $SLURM_JOB_ID: $*" 2>/dev/null || echo "gpushare epilog: $*" >&2; }

# report adds a line to the output of the job, as its user: the path is theirs, and may be of a file system that never answers, so it has
# a session of its own that nothing waits for after the limit. It is killed then: it is in the cgroup of slurmd without RunInJob. A job of
# srun alone has no such file.
report() {
	file=$(timeout -s KILL "$limit" scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *StdErr=//p' | head -n 1)
	[ -n "$file" ] || return 0
	# shellcheck disable=SC2016 # It is for the other shell.
	timeout -s KILL "$limit" sh -c 'setsid timeout -s KILL "$@" & wait "$!"' sh "$limit" \
		setpriv --reuid "$SLURM_JOB_UID" --regid "$SLURM_JOB_GID" --init-groups --no-new-privs \
		sh -c '[ -f "$1" ] && printf "gpushare: %s\n" "$2" >>"$1"' sh "$file" "$1" </dev/null >/dev/null 2>&1 ||
		say "this is not in its output: $1"
}

# An answer is lost if gpushared ends meanwhile, so each request is made again.
lease() { timeout -s KILL "$limit" gpushare lease "$@" 2>/dev/null || timeout -s KILL "$limit" gpushare lease "$@" 2>/dev/null; }

# Of a job that is requeued Slurm says here the number of its next run. The Prolog has noted that of this one.
run=$(sed -n 's/^{"run":"\([0-9]*\)".*/\1/p' "$note" 2>/dev/null)
key=slurm:$SLURM_CLUSTER_NAME:$SLURM_JOB_ID:${run:-${SLURM_JOB_RESTART_COUNT:-0}}
why=$(lease show --key "$key" | sed -n 's/^reason  *//p')
lease release --missing-ok --key "$key" >/dev/null || say "the lease of $key was not released"
rm -f "$note"
case $why in '' | 'its last process ended' | 'released by '*) ;; *) report "$why" ;; esac
exit 0
