# What the product's phases share.
root=/var/lib/gpusim
spec=/opt/lab/guest/node/spec.yaml
accepted=$spec
[ ! -f "$state/guarded.yaml" ] || accepted=$state/guarded.yaml
burn=/usr/local/lib/gpusim/gpusim-burn

status() { gpushare status --json; }
field() { # field JQ_EXPRESSION reads the status
	status | jq -r "$1"
}
truth() { # what the virtual GPUs themselves know
	/usr/local/lib/gpusim/gpusim ctl --root "$root" status "$@"
}
placements() { # every instance of the node, one a line: GPU, profile, start
	field '.gpus[] | .uuid as $u | (.mig.instances // [])[] | "\($u) \(.profile) \(.start)+\(.size)"' | sort
}
# start_job USER TENANT GRANT BURN_OPTION... runs a job as a person would, and leaves its process id in $pid.
start_job() {
	local user=$1 tenant=$2 grant=$3
	shift 3
	setpriv --reuid "$user" --regid "$user" --init-groups env -i PATH=/usr/bin:/bin GPUSIM_ROOT=$root \
		gpushare run -t "$tenant" --grant "$grant" -- "$burn" "$@" >"/run/lab/job-$tenant-$grant.out" 2>&1 </dev/null &
	pid=$!
	disown
	echo "$pid" >"$state/job-$tenant-$grant"
	until_true 30 ready "$tenant" "$grant"
}
ready() {
	# A refusal is said once, and then there is nothing to wait for.
	gone "$(job "$1" "$2")" && die "the job of $1/$2 ended: $(cat "/run/lab/job-$1-$2.out")"
	grep -q '^ready' "/run/lab/job-$1-$2.out"
}
job() { cat "$state/job-$1-$2"; }
leaf_of() { unit_of "$1"; }
lease_of() { # lease_of TENANT GRANT says id and process
	field ".leases[] | select(.tenant == \"$1\" and .grant == \"$2\") | \"\(.id) \(.pid)\""
}
busy() { # busy PID says for how many milliseconds it has had a GPU
	truth | jq "[.gpus[].busy[\"$1\"] // empty] | add // 0 | . * 1000 | floor"
}
moves() { # moves PID: it uses its GPU more than before
	[ "$(busy "$1")" -gt "$before_ms" ]
}
want_moving() { # a frozen process submits nothing, so one that uses its GPU further is not frozen for good
	local before_ms
	[ -d "/proc/$1" ] || die "process $1 is gone"
	before_ms=$(($(busy "$1") + 20))
	until_true 20 moves "$1"
}
active() { [ "$(property "$1" ActiveState)" = active ]; }
answers() { gpushare version >/dev/null 2>&1; }
mps_pid() { field '.gpus[] | select(.mode == "mps") | "\(.mps.pid) \(.mps.unit) \(.mps.state)"'; }
