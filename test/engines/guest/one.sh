# One script of the host, with the functions of the guests. It says on its last line where it failed.
set -Eeuo pipefail
. /opt/lab/guest/lib.sh
. /opt/lab/guest/product.sh
. /opt/lab/guest/slurm.sh
. /opt/lab/guest/engines.sh
. /opt/lab/guest/jobs.sh
trap 'echo "line $LINENO of $(basename "${BASH_SOURCE[0]}"): $BASH_COMMAND" >&2' ERR
. /run/lab/script.sh
