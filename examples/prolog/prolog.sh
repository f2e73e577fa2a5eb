#!/bin/sh
# Before a job: attaches it to a lease and prints its environment.
#
# For batch systems that start jobs themselves. Give it the first process of the job, or the cgroup that the batch system
# created for it:
#
#	JOB_ID=42 JOB_TENANT=vision JOB_GRANT=dev JOB_PID=4711 prolog.sh
#	JOB_ID=42 JOB_TENANT=vision JOB_GRANT=dev JOB_CGROUP=/batch/job_42 prolog.sh
#
# It exits with the code of gpushare: 3 if nothing is free now. Then the job has no lease, and must not start.
#
# It is not for Slurm, and does nothing there: 'gpushare slurm install' is, see docs/slurm.md.
set -eu
if [ -n "${SLURM_JOB_ID:-}" ]; then
	# A code other than 0 would drain the node if Slurm runs this as its Prolog.
	echo "gpushare prolog: not for Slurm, so job $SLURM_JOB_ID gets no lease: see docs/slurm.md" >&2
	exit 0
fi
id=${JOB_ID:?JOB_ID is not set}
notes=${JOB_NOTES:-${XDG_RUNTIME_DIR:-/run/gpushare-prolog}}

if [ -n "${JOB_CGROUP:-}" ]; then
	set -- --cgroup "$JOB_CGROUP"
else
	set -- --pid "${JOB_PID:?neither JOB_PID nor JOB_CGROUP is set}"
fi
[ -z "${JOB_TENANT:-}" ] || set -- "$@" --tenant "$JOB_TENANT"
[ -z "${JOB_GRANT:-}" ] || set -- "$@" --grant "$JOB_GRANT"
[ -z "${JOB_WAIT:-}" ] || set -- "$@" "--wait=$JOB_WAIT"

# Without a note the epilog could not release the lease, so none is taken.
file=$notes/gpushare-lease.$id
mkdir -p "$notes"
: >"$file"
environment=
failed() {
	lease=$(printf '%s\n' "$environment" | sed -n "s/^export GPUSHARE_LEASE='\(.*\)'$/\1/p")
	[ -z "$lease" ] || gpushare lease release --missing-ok "$lease" || :
	rm -f "$file"
}
trap 'code=$?; [ $code = 0 ] || failed' EXIT

# What is not enforced for the job goes to standard error, and so into the job's log.
environment=$(gpushare lease attach --export "$@" -- "job-$id")
printf '%s\n' "$environment" | sed -n "s/^export GPUSHARE_LEASE='\(.*\)'$/\1/p" >"$file"
# No value needs quotes, and some batch systems would keep them.
printf '%s\n' "$environment" | sed "s/^\(export [A-Z_]*\)='\(.*\)'$/\1=\2/"
