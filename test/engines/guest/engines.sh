# What makes the guest a node of Kubernetes.
kubernetes=/opt/lab/kubernetes
containerd=/opt/lab/containerd

# The network of qemu has no more than the host in it.
start_network() {
	local link
	link=$(basename "$(readlink -e /sys/class/net/e*)")
	ip link set "$link" up
	ip address add 10.0.2.15/24 dev "$link"
	ip route add default via 10.0.2.2
}

start_containerd() {
	install -D -m 0644 /opt/lab/guest/containerd.toml /etc/containerd/lab.toml
	install -D -m 0644 /opt/lab/guest/network.conflist /etc/cni/net.d/10-lab.conflist
	install -m 0644 /opt/lab/guest/lab-containerd.service /etc/systemd/system/
	systemctl daemon-reload
	systemctl start lab-containerd.service
	until_true 180 test -S /run/containerd/containerd.sock
	until_true 60 containerd_answers
	"$containerd/ctr" -n k8s.io images import --local --snapshotter native /opt/lab/images/images.tar
}

containerd_answers() { "$containerd/ctr" version >/dev/null 2>&1; }

start_kubelet() {
	install -D -m 0600 /opt/lab/node/node.kubeconfig /etc/kubernetes/kubelet.kubeconfig
	install -D -m 0644 /opt/lab/node/ca.crt /etc/kubernetes/ca.crt
	install -m 0644 /opt/lab/guest/kubelet.yaml /etc/kubernetes/
	install -m 0644 /opt/lab/guest/lab-kubelet.service /etc/systemd/system/
	systemctl daemon-reload
	systemctl start lab-kubelet.service
}

# log_of POD prints what its containers wrote: the apiserver of the host does not reach the kubelet.
log_of() { cat /var/log/pods/default_"$1"_*/*/*.log | cut -d' ' -f4-; }

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
	install -m 0755 /opt/lab/plugin/gpushare-kubelet /usr/sbin/
	install -m 0644 /opt/lab/deploy/gpushare-kubelet.service /etc/systemd/system/
	printf 'KUBECONFIG=/etc/kubernetes/kubelet.kubeconfig\nOPTIONS=--node=lab\n' >/etc/default/gpushare-kubelet
	mkdir -p /run/cdi
	systemctl daemon-reload
	systemctl start gpushare-kubelet.service
}
# leases prints those of claims, one a line: name and pod, state, grant, GPU memory.
leases() { field '.leases[] | select(.engine != null) | "\(.command | join(" ")) \(.state) \(.grant) \(.gpu_memory // "-")"' | sort; }
leases_of() { leases | grep -c "$1" || true; } # leases_of POD_UID
no_lease_of() { [ "$(leases_of "$1")" = 0 ]; }
# left prints what claims have left: leases, CDI files, instances.
left() {
	leases
	find /run/cdi -name 'gpushare.dev-claim_*' 2>/dev/null
	placements
	find /sys/fs/cgroup/kubepods.slice -name '*-pod*.slice' 2>/dev/null
}
nothing_left() { [ -z "$(left)" ]; }
