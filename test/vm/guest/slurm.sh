# What the phases with Slurm share: its files, and its node.

# slurm_conf [GRES [LINE...]] writes its files for one node with these resources, and further lines of slurm.conf.
slurm_conf() {
	local gres=${1:-}
	# Slurm listens only where there is another address than 127.0.0.1, and the machine has no network.
	ip address replace 10.99.0.1/32 dev lo
	mkdir -p /etc/slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm
	chown slurm: /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm
	cat >/etc/slurm/slurm.conf <<-CONF
		ClusterName=lab
		SlurmctldHost=$(uname -n)
		SlurmUser=slurm
		AuthType=auth/munge
		StateSaveLocation=/var/lib/slurm/slurmctld
		SlurmdSpoolDir=/var/lib/slurm/slurmd
		SlurmctldPidFile=/run/slurmctld.pid
		SlurmdPidFile=/run/slurmd.pid
		SlurmctldLogFile=/var/log/slurm/slurmctld.log
		SlurmdLogFile=/var/log/slurm/slurmd.log
		ProctrackType=proctrack/cgroup
		TaskPlugin=task/cgroup
		JobAcctGatherType=jobacct_gather/none
		AccountingStorageType=accounting_storage/none
		MpiDefault=none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_CPU
		SlurmdParameters=config_overrides
		ReturnToService=2
		MessageTimeout=90
		BatchStartTimeout=90
		UnkillableStepTimeout=240
		$(printf '%s\n' "${@:2}")
		NodeName=${node:-$(uname -n)} NodeHostname=$(uname -n) CPUs=16 RealMemory=500 State=UNKNOWN ${gres:+Gres=$gres}
		PartitionName=all Nodes=ALL Default=YES MaxTime=1:00:00 State=UP
	CONF
	printf 'CgroupPlugin=cgroup/v2\nConstrainDevices=yes\n' >/etc/slurm/cgroup.conf
	if [ ! -s /etc/munge/munge.key ]; then
		head -c 1024 /dev/urandom >/etc/munge/munge.key
		chown munge: /etc/munge/munge.key
		chmod 0400 /etc/munge/munge.key
	fi
}
start_slurm() {
	systemctl start munge.service slurmctld.service
	systemctl start slurmd.service || die "slurmd does not start: $(tail -n 5 /var/log/slurm/slurmd.log)"
}
# stop_slurm stops it, and it forgets its jobs.
stop_slurm() {
	systemctl stop slurmd.service slurmctld.service munge.service
	rm -rf /var/lib/slurm/slurmctld/* /var/lib/slurm/slurmd/* /etc/slurm/gres.conf
}
node_is_idle() { [ "$(sinfo -h -o %T)" = idle ]; }
