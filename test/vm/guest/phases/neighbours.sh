# Other programs of the host next to the product: what they read of cgroups and mounts, Slurm in both orders, containerd and podman. What
# an earlier version mounted goes with the upgrade.
# checks: visible reader slurm_second slurm_first containerd podman option former
# seconds: 330

. /opt/lab/guest/product.sh
. /opt/lab/guest/slurm.sh

rootfs=/run/lab/rootfs

# Everything that other programs of the host could see of the daemon: see the list in docs/install.md.
seen() {
	echo "# mounts"
	cut -d' ' -f1-4 /proc/1/mounts
	echo "# hierarchies"
	cut -d: -f2 /proc/1/cgroup
	echo "# sysctls"
	sysctl -a 2>/dev/null | grep -vE '^(fs\.(dentry-state|file-nr|inode-(nr|state)|quota|aio-nr)|kernel\.(ns_last_pid|random\.|pty\.nr|tainted|perf_event_max_sample_rate)|net\.netfilter\.nf_conntrack_count|vm\.)'
	echo "# modules"
	cut -d' ' -f1 /proc/modules | sort
	echo "# sockets"
	ss -Hltunx | awk '$1 ~ /^(u_|tcp|udp)/ && $5 !~ "^/run/user/" { print $1, $5 }' | sort -u # Logins end meanwhile.
	echo "# users"
	getent passwd && getent group
	echo "# files"
	find /etc /run/cdi /run/systemd/generator /usr/lib/systemd -xdev 2>/dev/null | sort
	echo "# audit"
	auditctl -l 2>/dev/null || true
	echo "# programs"
	bpftool prog show | sed -n 's/^[0-9]*: *\([a-z_]*\) .*name \([^ ]*\).*/\1 \2/p' | sort -u
	find /sys/fs/bpf -mindepth 1 | sort
}

# Stopped without a lease, and running with one: what differs is in the list.
check_visible() {
	local new
	systemctl stop gpushared.service
	seen >/run/lab/seen-before
	systemctl start gpushared.service
	until_true 60 answers
	seen >/run/lab/seen-while
	new=$(diff /run/lab/seen-before /run/lab/seen-while | sed -n 's/^[<>]/&/p' || true)
	note "${new//$'\n'/; }"
	new=$(grep -vE '^[<>] (tracing gpushare_(fork|exit)|/run/cdi/gpushare-.*\.json|/sys/fs/bpf/gpushare(/gpushare(/(members|lost|fork|exit))?)?|u_str /run/gpushare/nvml\.sock)$' <<<"$new" || true)
	want "what the host has while the daemon runs, and is not in the list" "$new" ""
	[ -e /sys/fs/bpf/gpushare/gpushare/fork ] || die "the record of the processes of leases is not pinned: $(ls /sys/fs/bpf)"
	want "conditions" "$(field '[.node.conditions[]? | select(.kind == "escape" or .kind == "hierarchy") | .message] | join("; ")')" ""
}

# The libraries of runc and kubelet take a host for one with cgroup v2 alone if each process has one line, of the hierarchy 0, and no file
# system of cgroup v1 is mounted. A lease runs meanwhile.
check_reader() {
	local f line n=0
	[ -d "/proc/$(job vision dev)" ] || die "the lease has ended"
	for f in /proc/[0-9]*/cgroup; do
		line=$(cat "$f" 2>/dev/null) || continue # It has ended.
		[[ $line == 0::/* && $line != *$'\n'* ]] || die "$f: $line"
		n=$((n + 1))
	done
	want "mounts of cgroup v1" "$(awk '$3 == "cgroup"' /proc/mounts)" ""
	note "$n processes"
}

# job_runs prints where a job of alice runs, with the node that Slurm drains if it cannot start one.
job_runs() {
	until_true 90 node_is_idle
	(cd /tmp && timeout 120 runuser -u alice -- srun -t 1 sed -n 's/^0:://p' /proc/self/cgroup) 2>&1
}
want_job() {
	local out
	out=$(job_runs) || die "the job does not run: $out; $(tail -n 3 /var/log/slurm/slurmd.log)"
	[[ $out == */job_*/step_0/* ]] || die "the job runs in: $out"
	note "a job of Slurm $(slurmd -V | cut -d' ' -f2) runs in $out"
}

# The daemon runs, with leases, when slurmd starts.
check_slurm_second() {
	slurm_conf
	active gpushared.service
	start_slurm
	want_job
}

# slurmd runs when the daemon starts. A lease runs next to a job.
check_slurm_first() {
	local out
	systemctl stop gpushared.service gpushared.socket
	systemctl restart slurmd.service
	systemctl start gpushared.socket gpushared.service
	until_true 60 answers
	want_job
	out=$(as alice gpushare run -q -t vision --grant dev -- sed -n 's/^0:://p' /proc/self/cgroup 2>&1) || die "a lease does not start next to Slurm: $out"
	[[ $out == /gpushare.slice/*/run ]] || die "the lease runs in $out"
	want_job
}

make_rootfs() {
	mkdir -p $rootfs/bin $rootfs/proc $rootfs/sys $rootfs/dev $rootfs/etc
	cp /bin/busybox $rootfs/bin/
}

check_containerd() {
	local out
	make_rootfs
	systemctl start containerd.service
	out=$(timeout 120 ctr run --rm --rootfs $rootfs lab-neighbour /bin/busybox cat /proc/self/cgroup 2>&1) || die "a container does not run: $out"
	[[ $out == 0::/* && $out != *$'\n'* ]] || die "the cgroups that the container sees: $out"
	systemctl stop containerd.service
}

check_podman() {
	local out
	make_rootfs
	out=$(timeout 120 podman run --rm --network none --rootfs $rootfs /bin/busybox cat /proc/self/cgroup 2>&1) || die "a container does not run: $out"
	[[ $out == 0::/* && $out != *$'\n'* ]] || die "the cgroups that the container sees: $out"
}

# The option that docs/install.md names for quicker starts keeps the others, and Slurm does not mind it.
check_option() {
	local before
	before=$(options)
	mount -o remount,favordynmods /sys/fs/cgroup
	want "the options of cgroups" "$(options)" "$(printf '%s,favordynmods' "$before" | tr , '\n' | sort | paste -sd,)"
	want_job
}
options() { awk '$2 == "/sys/fs/cgroup" { print $4 }' /proc/mounts | tr , '\n' | sort | paste -sd,; }

# The hierarchies of an earlier version, with a process of a lease: slurmd does not start, which shows that the checks above can fail. A
# restart of the daemon and the script of the package remove them, and the lease runs on.
check_former() {
	local at p
	p=$(job vision dev)
	for at in descent moves; do
		mkdir -p /run/gpushare/$at
	done
	mount -t cgroup -o none,name=gpushare,nosuid,nodev,noexec cgroup /run/gpushare/descent
	mount -t cgroup -o none,name=gpushare-moves,favordynmods,nosuid,nodev,noexec cgroup /run/gpushare/moves
	mkdir -p /run/gpushare/descent/gpushare/lab-1
	echo "$p" >/run/gpushare/descent/gpushare/lab-1/cgroup.procs
	systemctl stop slurmd.service
	! timeout 60 systemctl start slurmd.service || ! job_runs >/run/lab/job.out || die "Slurm runs jobs next to the hierarchies: this check tests nothing: $(cat /run/lab/job.out)"
	grep -qi hybrid /var/log/slurm/slurmd.log || die "slurmd does not mind the hierarchies: $(tail -n 3 /var/log/slurm/slurmd.log)"
	systemctl stop slurmd.service
	systemctl restart gpushared.service
	until_true 60 answers
	until_true 30 condition_names_mounts
	/var/lib/dpkg/info/gpushare.postinst configure 1.0
	want "mounts of cgroup v1" "$(awk '$3 == "cgroup"' /proc/mounts)" ""
	want "the cgroups of the process of the lease" "$(wc -l <"/proc/$p/cgroup")" 1
	until_true 60 answers
	until_true 30 no_hierarchy_condition
	systemctl reset-failed slurmd.service || true
	# Slurm 22.05 waits for the end of the job that it could not start.
	stop_slurm
	start_slurm
	want_job
	stop_slurm
	rm -rf $rootfs
}
condition_names_mounts() { [[ $(field '[.node.conditions[]? | select(.kind == "hierarchy") | .hint] | join("; ")') == *"umount /run/gpushare/"* ]]; }
no_hierarchy_condition() { [ "$(field '[.node.conditions[]? | select(.kind == "hierarchy")] | length')" = 0 ]; }
