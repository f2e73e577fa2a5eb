#!/bin/sh
# HealthCheckProgram of Slurm: drains the node if a GPU that Slurm places on is unusable. When slurmd starts, it runs until it exits with 0
# before the node registers: it does so in every other case.
set -u
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin:/opt/slurm/bin
export PATH
command -v gpushare >/dev/null || exit 0 # All nodes of a cluster have this script, also those without GPUs.
limit=${GPUSHARE_PROLOG_SECONDS:-2} # for each command of it
timeout -s KILL "$((limit * 5))" gpushare slurm health --node "${GPUSHARE_NODE:-}" 2>/dev/null
[ $? -ne 6 ] || exit 1
exit 0
