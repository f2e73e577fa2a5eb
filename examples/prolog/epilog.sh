#!/bin/sh
# After a job: releases its lease. Processes of the job that still run continue; the batch system stops them. A lease whose
# last process ended has ended already, which is not an error.
#
# It needs the variables JOB_ID and JOB_NOTES of prolog.sh.
set -eu
[ -z "${SLURM_JOB_ID:-}" ] || exit 0 # prolog.sh took no lease.
id=${JOB_ID:?JOB_ID is not set}
notes=${JOB_NOTES:-${XDG_RUNTIME_DIR:-/run/gpushare-prolog}}
file=$notes/gpushare-lease.$id

[ -e "$file" ] || exit 0 # The prolog got no lease.
gpushare lease release --missing-ok "$(cat "$file")"
rm -f "$file"
