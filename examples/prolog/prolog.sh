#!/bin/sh
# Before a job: attaches it to a lease and prints its environment.
#
# For batch systems that start jobs themselves. Give it the first process of the job, or the cgroup that the batch system
# created for it:
#
#	JOB_ID=42 JOB_TENANT=vision JOB_GRANT=dev JOB_PID=4711 prolog.sh
#	JOB_ID=42 JOB_TENANT=vision JOB_GRANT=dev JOB_CGROUP=/system.slice/slurmstepd.scope/job_42 prolog.sh
#
# As Slurm's TaskProlog it needs only tenant and grant: Slurm passes the job and the process, runs it as the job's user, and
# sets every line "export NAME=value" that it prints. It exits with the code of gpushare: 3 if nothing is free now.
set -eu
id=${JOB_ID:-${SLURM_JOB_ID:?JOB_ID is not set}}${SLURM_PROCID:+.$SLURM_PROCID}
pid=${JOB_PID:-${SLURM_TASK_PID:-}}
notes=${JOB_NOTES:-${XDG_RUNTIME_DIR:-/run/gpushare-prolog}}

if [ -n "${JOB_CGROUP:-}" ]; then
	set -- --cgroup "$JOB_CGROUP"
else
	set -- --pid "${pid:?neither JOB_PID nor JOB_CGROUP is set}"
fi
[ -z "${JOB_TENANT:-}" ] || set -- "$@" --tenant "$JOB_TENANT"
[ -z "${JOB_GRANT:-}" ] || set -- "$@" --grant "$JOB_GRANT"
[ -z "${JOB_WAIT:-}" ] || set -- "$@" "--wait=$JOB_WAIT"

# What is not enforced for the job goes to standard error, and so into the job's log.
environment=$(gpushare lease attach --export "$@" -- "job-$id")
mkdir -p "$notes"
printf '%s\n' "$environment" | sed -n "s/^export GPUSHARE_LEASE='\(.*\)'$/\1/p" >"$notes/gpushare-lease.$id"
# No value needs quotes, and Slurm would keep them.
printf '%s\n' "$environment" | sed "s/^\(export [A-Z_]*\)='\(.*\)'$/\1=\2/"
