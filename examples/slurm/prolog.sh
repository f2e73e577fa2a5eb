#!/bin/sh
# Prolog of Slurm: gives each job with GPUs one lease, in the cgroup of the job. With PrologFlags=Alloc,Contain,RunInJob, from 24.05 on, it
# runs in that cgroup. Without RunInJob, with PrologFlags=Alloc,Contain, the cgroup comes later, and gpushare waits for it.
#
# It fails only if a GPU of the job is unusable: that drains the node and requeues the job. A job without a lease runs; why it has none is
# in the journal (gpushare-prolog). 'gpushare slurm prolog --help' says more.
set -u
# With RunInJob the signals with which Slurm ends a job, and those that its user sends to it, are for it too, and a Prolog that ends so
# drains the node.
trap '' TERM HUP INT QUIT USR1 USR2
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin:/opt/slurm/bin # Slurm gives a Prolog none.
export PATH
command -v gpushare >/dev/null || exit 0 # All nodes of a cluster have this script, also those without GPUs.
limit=${GPUSHARE_PROLOG_SECONDS:-2} # for each command of it
timeout -s KILL "$((limit * 5))" gpushare slurm prolog --tenant "${GPUSHARE_TENANT:-slurm}" --grant "${GPUSHARE_GRANT:-}" 2>/dev/null
[ $? -ne 6 ] || exit 1
exit 0
