#!/bin/bash
# check.sh PHASE_FILE NAME runs one check and prints on its last line where it failed.
set -Eeuo pipefail
. /opt/lab/guest/lib.sh
. "$1"
trap 'echo "line $LINENO of $(basename "${BASH_SOURCE[0]}"): $BASH_COMMAND" >&2' ERR
"check_$2"
