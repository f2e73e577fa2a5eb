# What makes the guest a node of Kubernetes. What runs at boot must not need /opt/lab, which is unpacked at about that time.
lab=/usr/local/lib/lab

start_network() {
	install -D -m 0755 /opt/lab/guest/network.sh "$lab/network.sh"
	enabled lab-network
}
# enabled UNIT starts one of the lab now, and at each boot.
enabled() {
	install -m 0644 "/opt/lab/guest/$1.service" /etc/systemd/system/
	systemctl enable --quiet "$1.service" # It reloads.
	systemctl start "$1.service"
}

start_containerd() {
	install -D -m 0644 /opt/lab/guest/containerd.toml /etc/containerd/lab.toml
	install -D -m 0644 /opt/lab/guest/network.conflist /etc/cni/net.d/10-lab.conflist
	install -D -m 0755 /opt/lab/guest/no-network.sh /opt/cni/bin/no-network
	install -m 0755 /opt/lab/containerd/* "$lab/"
	enabled lab-containerd
	until_true 180 test -S /run/containerd/containerd.sock
	until_true 60 containerd_answers
	"$lab/ctr" -n k8s.io images import --local --snapshotter native /opt/lab/images/images.tar
	"$lab/ctr" -n k8s.io images import --local --snapshotter native --base-name docker.io/lab/gpushare-kubelet /opt/lab/images/driver.tar
}

containerd_answers() { "$lab/ctr" version >/dev/null 2>&1; }

start_kubelet() {
	install -D -m 0600 /opt/lab/node/node.kubeconfig /etc/kubernetes/kubelet.kubeconfig
	install -D -m 0644 /opt/lab/node/ca.crt /etc/kubernetes/ca.crt
	install -m 0644 /opt/lab/guest/kubelet.yaml /etc/kubernetes/
	install -m 0755 /opt/lab/kubernetes/kubelet "$lab/"
	enabled lab-kubelet
}

# log_of POD prints what its containers wrote: the apiserver of the host does not reach the kubelet.
log_of() { cat /var/log/pods/default_"$1"_*/*/*.log | cut -d' ' -f4-; }

# last_log_of POD is that of the last start of its container.
last_log_of() { cut -d' ' -f4- "$(find /var/log/pods/default_"$1"_*/ -name '*.log' | sort -V | tail -n 1)"; }
shows() { last_log_of "$1" | grep -qx shown; } # A container runs before it has opened the GPUs.
works_again() { last_log_of "$1" | grep -q '^ready'; }

# processes_of UID prints those of the containers of a pod, with its sandbox.
processes_of() {
	find /sys/fs/cgroup/kubepods.slice -path "*pod${1//-/_}.slice/cri-containerd-*" -name cgroup.procs -exec cat {} + | sort -n
}
# nothing_of UID is true when the pod has left no cgroup.
nothing_of() { [ -z "$(find /sys/fs/cgroup/kubepods.slice -name "*pod${1//-/_}.slice")" ]; }

# killed UNIT kills its main process, and starts it again unless systemd does.
killed() {
	local main
	main=$(property "$1" MainPID)
	kill -KILL "$main"
	until_true 30 knows_end "$1" "$main" # Until then a start does nothing.
	systemctl reset-failed "$1" || true
	systemctl start "$1"
}
knows_end() { [ "$(property "$1" MainPID)" != "$2" ]; }

# start_gpushare installs the package on the virtual GPUs and starts it.
start_gpushare() {
	install_lab_profiles
	dpkg -i /opt/lab/packages/gpushare.deb >/run/lab/dpkg 2>&1 || die "$(cat /run/lab/dpkg)"
	use_virtual_gpus
	systemctl start gpusim.service gpushare-thaw.service gpushared.service
	until_true 180 answers
}
# conditions prints those of the node that say more than that something is not enforced.
conditions() { field '[.node.conditions // [] | .[] | select(.kind != "not-enforced") | .message] | join("; ")'; }

# start_plugin installs gpushare-kubelet with its unit and starts it, with the credential of the kubelet.
start_plugin() {
	install -D -m 0755 /opt/lab/plugin/gpushare-kubelet /usr/local/sbin/gpushare-kubelet
	install -m 0644 /opt/lab/deploy/gpushare-kubelet.service /etc/systemd/system/
	plugin_settings
	systemctl enable --quiet gpushare-kubelet.service
	systemctl start gpushare-kubelet.service
}
plugin_settings() { # plugin_settings [LINE...]
	printf '%s\n' KUBECONFIG=/etc/kubernetes/kubelet.kubeconfig OPTIONS=--node=lab "$@" >/etc/default/gpushare-kubelet
}
# fault_at ACTION PATTERN N makes the plug-in kill or stop itself at the Nth instant with such a name, once.
stamp=/var/lib/kubelet/plugins/instant
fault_at() {
	rm -f $stamp
	plugin_settings "GPUSHARE_FAULT=$2:$1@$3" GPUSHARE_FAULT_STAMP=$stamp
	systemctl restart gpushare-kubelet.service
}
instant() { cat $stamp 2>/dev/null || true; } # instant prints where it did
no_fault() {
	rm -f $stamp
	plugin_settings
	systemctl restart gpushare-kubelet.service
}
# killed_at_instant UNIT COMMAND... kills a unit where the plug-in has stopped itself, lets it go on when the unit runs again, and prints
# where it was. The command is true when the plug-in has passed no such instant.
killed_at_instant() {
	local unit=$1 plugin
	shift
	plugin=$(property gpushare-kubelet.service MainPID)
	until_true 120 stopped_or "$plugin" "$@"
	if ! stopped "$plugin"; then return 0; fi
	killed "$unit.service"
	until_true 120 answers
	kill -CONT "$plugin"
	instant
}
stopped() { grep -q '^State:.T' "/proc/$1/status"; }
stopped_or() { stopped "$1" || "${@:2}" 2>/dev/null; }

# leases prints those of claims, one a line: claim, state, grant, limit of GPU memory, cgroups of its pods. What is used is sampled, and changes.
leases() { field '.leases[] | select(.engine != null) | "\(.command | join(" ")) \(.state) \(.grant) \(.gpu_memory.limit // "-") \(.engine.cgroups // [] | join(","))"' | sort; }
leases_of() { leases | grep -c "pod${1//-/_}[.]slice" || true; } # leases_of POD_UID
no_lease_of() { [ "$(leases_of "$1")" = 0 ]; }
# left prints what claims have left: leases, CDI files, instances.
left() {
	left_of_pods
	placements
}
left_of_pods() { # The same but for instances, which are on a lost GPU until it is back.
	leases
	find /run/cdi -name 'gpushare.dev-claim_*' 2>/dev/null
	find /sys/fs/cgroup/kubepods.slice -name '*-pod*.slice' 2>/dev/null
}
nothing_left_of_pods() { [ -z "$(left_of_pods)" ]; }
no_leases() { [ -z "$(leases)" ]; }
nothing_left() { [ -z "$(left)" ]; }

# What the kubelet does to a pod has no event here, so it is read again: its cgroup is made before its claim is prepared, and its claim is
# unprepared when its processes have ended.
cgroup_of_pod() { [ -n "$(find /sys/fs/cgroup/kubepods.slice -name "*pod${1//-/_}.slice" 2>/dev/null)" ]; }
no_processes_of() { [ -z "$(processes_of "$1")" ]; }
# prepared_and_killed UID UNIT SECONDS kills a unit that long after the kubelet has begun with a pod, unprepared_and_killed after its end.
prepared_and_killed() {
	until_true 120 cgroup_of_pod "$1"
	nap "$3"
	killed "$2.service"
	until_true 120 answers
}
unprepared_and_killed() {
	until_true 120 no_processes_of "$1"
	nap "$3"
	killed "$2.service"
	until_true 120 answers
}
# one_lease_of UID is true when the pod has its lease, and no other one.
one_lease_of() { [ "$(leases_of "$1")" = 1 ]; }

# shares prints the shares of claims, one a line: pod, what it is due, how long it had the GPU in percent, how often it was frozen.
shares() {
	field '.leases[] | select(.engine != null) | "\(.command | join(" ")) \(.engine.cgroups // [] | join(",")) entitled \(.share.entitled) due \(.share.due) busy \(.share.busy) enforced \(.share.enforced) \(.share.state) frozen \(.share.freezes.count // 0) \(.share.reason // "")"'
}
# shared_by UID... is true when the share of each of the pods was measured, is enforced, and it was frozen for the others.
shared_by() {
	local uid
	for uid; do
		shares | grep "pod${uid//-/_}[.]slice" | grep ' enforced true ' | grep -v ' unmeasured ' | grep -qv ' frozen 0 ' || return 1
	done
}

# has_lease ID CGROUPS BYTES is true when the one lease of claims has that id, so many cgroups, and uses as much GPU memory or more.
has_lease() {
	field '.leases[] | select(.engine != null) | "\(.id) \(.engine.cgroups | length) \(.gpu_memory.used // 0)"' >/run/lab/lease
	[ "$(wc -l </run/lab/lease)" = 1 ] && awk -v id="$1" -v n="$2" -v b="$3" '{ exit !($1 == id && $2 == n && $3 >= b) }' /run/lab/lease
}
lease_ids() { field '.leases[] | select(.engine != null) | .id'; }
ctl() { /usr/local/lib/gpusim/gpusim ctl --root $root "$@"; }

# booted_gpus ends the loss of a GPU: it is there after the next boot of the GPUs, for which nothing may use the driver.
booted_gpus() {
	gpushare maintenance on --driver --wait 2m
	ctl reboot
	gpushare maintenance off
}

# had_in SECONDS UID... prints for how many milliseconds of that time each pod has had a GPU, as the virtual GPUs count it, one a line, and on
# the last one how long it was by their clock. All pods are read at once.
had_in() {
	local seconds=$1 uid began
	shift
	truth >/run/lab/had.before
	began=$(uptime_ms)
	nap "$seconds"
	truth >/run/lab/had.after
	for uid; do echo $(($(had after "$uid") - $(had before "$uid"))); done
	echo $(($(uptime_ms) - began))
}
had() { # had READING UID
	processes_of "$2" | gojq -R . | gojq -s --slurpfile truth "/run/lab/had.$1" '[. as $p | $truth[0].gpus[].busy // {} | .[$p[]] // 0] | add * 1000 | floor'
}

# one_client_of_mps is true when one process on GPU 3 is a client of its MPS. Processes are sampled.
one_client_of_mps() { [ "$(field '[.gpus[3].processes // [] | .[] | select(.kind == "mps")] | length')" = 1 ]; }
