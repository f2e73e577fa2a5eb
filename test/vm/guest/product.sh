# What the phases with the product share.
root=/var/lib/gpusim
spec=/opt/lab/guest/node/spec.yaml
accepted=$spec
[ ! -f "$state/closed.yaml" ] || accepted=$state/closed.yaml
burn=/usr/local/lib/gpusim/gpusim-burn

# What runs at boot must not need /opt/lab, which is unpacked at about that time.
install_virtual_gpus() {
	mkdir -p /usr/local/lib/gpusim
	cp /opt/lab/gpusim/* /usr/local/lib/gpusim/
	install -m 0755 /opt/lab/guest/node/before.sh /opt/lab/guest/lib.sh /opt/lab/guest/node/node.yaml /usr/local/lib/gpusim/
	install -m 0644 /opt/lab/guest/node/gpusim.service /etc/systemd/system/
}
# use_virtual_gpus UNIT... stops what the package has started, gives it the lab's settings and GPUs, and enables units next to theirs.
use_virtual_gpus() {
	systemctl stop gpushared.service gpushared.socket gpushare-thaw.service
	install_virtual_gpus
	echo "host_root: $root" >>/etc/gpushare/gpushared.yaml
	cat /opt/lab/guest/node/settings.yaml >>/etc/gpushare/gpushared.yaml
	mkdir -p /etc/systemd/system/gpushared.service.d
	printf '[Service]\nWatchdogSec=60s\n' >/etc/systemd/system/gpushared.service.d/lab.conf
	systemctl enable --no-reload --quiet gpusim.service "$@"
	systemctl daemon-reload
}
# The profiles of the package know the paths of a real host. An administrator adds others here, and the lab does.
install_lab_profiles() {
	mkdir -p /etc/apparmor.d/local
	printf '%s\n' '/var/lib/gpusim/{,**} rwk,' '/usr/local/lib/gpusim/** mrix,' >/etc/apparmor.d/local/gpushared
	printf '%s\n' '/var/lib/gpusim/{,**} rwk,' '/usr/local/lib/gpusim/** mr,' >/etc/apparmor.d/local/gpushare-nvml
}
status() { gpushare status --json; }
field() { # field JQ_EXPRESSION reads the status
	status | gojq -r "$1"
}
truth() { # what the virtual GPUs themselves know
	/usr/local/lib/gpusim/gpusim ctl --root "$root" status "$@"
}
placements() { # every instance of the node, one a line: GPU, profile, start
	field '.gpus[] | .uuid as $u | (.mig.instances // [])[] | "\($u) \(.profile) \(.placement.start)+\(.placement.size)"' | sort
}
# start_job USER TENANT GRANT BURN_OPTION... runs a job as a user would, and leaves its process id in $pid.
start_job() {
	local user=$1 tenant=$2 grant=$3
	shift 3
	rm -f "/run/lab/job-$tenant-$grant.out" # So that no output of an earlier job is read.
	setpriv --reuid "$user" --regid "$user" --init-groups env -i PATH=/usr/bin:/bin GPUSIM_ROOT=$root \
		gpushare run -t "$tenant" --grant "$grant" -- "$burn" "$@" >"/run/lab/job-$tenant-$grant.out" 2>&1 </dev/null &
	pid=$!
	disown
	echo "$pid" >"$state/job-$tenant-$grant"
	until_true 30 ready "$tenant" "$grant"
}
ready() {
	# After a refusal there is nothing to wait for.
	ended "$(job "$1" "$2")" && die "the job of $1/$2 ended: $(cat "/run/lab/job-$1-$2.out")"
	grep -qs '^ready' "/run/lab/job-$1-$2.out"
}
job() { cat "$state/job-$1-$2"; }
leaf_of() { unit_of "$1"; }
lease_of() { # lease_of TENANT GRANT prints id and process
	field ".leases[] | select(.tenant == \"$1\" and .grant == \"$2\") | \"\(.id) \(.pid)\""
}
busy() { busy_of "$1"; } # busy PID prints for how many milliseconds it has had a GPU
busy_of() { # busy_of PID... prints the same for each, on one line
	truth | gojq '[.gpus[].busy] as $all | $ARGS.positional[] as $p | [$all[][$p] // empty] | add // 0 | . * 1000 | floor' --args "$@"
}
moved() { # moved BEFORE_MS... PID...: each uses its GPU more than before
	local before=("${@:1:$#/2}") now i
	mapfile -t now < <(busy_of "${@:$#/2+1}")
	for i in "${!before[@]}"; do
		[ "${now[i]}" -gt $((before[i] + 20)) ] || return 1
	done
}
want_moving() { # want_moving PID...: a process that is frozen permanently does not use its GPU any more
	local p before
	for p; do [ -d "/proc/$p" ] || die "process $p has ended"; done
	mapfile -t before < <(busy_of "$@")
	until_true 20 moved "${before[@]}" "$@"
}
answers() { gpushare version >/dev/null 2>&1; }
mps_pid() { field '.gpus[] | select(.mode == "mps") | "\(.mps.pid) \(.mps.unit) \(.mps.state)"'; }
