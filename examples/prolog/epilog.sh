#!/bin/sh
# After a job: takes its lease from the books. Whatever of the job still runs goes on; ending it is the batch system's
# business. A lease whose last process has ended is gone by itself, and that is no error here.
#
# It takes the same variables as prolog.sh, of which it needs JOB_ID and JOB_NOTES only.
set -eu
id=${JOB_ID:-${SLURM_JOB_ID:?JOB_ID is not set}}${SLURM_PROCID:+.$SLURM_PROCID}
notes=${JOB_NOTES:-${XDG_RUNTIME_DIR:-/run/gpushare-prolog}}
file=$notes/gpushare-lease.$id

[ -e "$file" ] || exit 0 # The prolog got no lease.
gpushare lease release --missing-ok "$(cat "$file")"
rm -f "$file"
