# Slurm next to Kubernetes on one node, with the scripts of examples/slurm.
node=lab1
scope=/system.slice/${node}_slurmstepd.scope
jobs=/run/lab/jobs

# start_jobs starts it for the GPUs of jobs and of local users. Its scripts have the time of an emulated processor.
start_jobs() {
	local at gres
	mkdir -p $jobs /etc/slurm
	chmod 1777 $jobs
	gpushare slurm gres --node $node --gpu 1,2 >/etc/slurm/gres.conf
	gres=$(gpushare slurm gres --node $node --gpu 1,2 --json | gojq -r .gres)
	for at in prolog epilog; do
		printf '#!/bin/sh\ntrap "" TERM\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin GPUSHARE_PROLOG_SECONDS=40\nexec /usr/share/gpushare/examples/slurm/%s.sh\n' \
			$at >/etc/slurm/$at
	done
	# work MEMORY opens the nodes, and uses that much of the GPU.
	printf '#!/bin/bash\nbash -c %q opens %s | xargs echo nodes:\nexport GPUSIM_ROOT=%s\nunset CUDA_VISIBLE_DEVICES\nexec %s --gpu 1 --memory "$1" --kernel 50ms --queue 2 --seconds 3000\n' \
		"$opens" "$(echo $root/dev/nvidia{0,1,2})" $root $burn >$jobs/work
	chmod 0755 /etc/slurm/prolog /etc/slurm/epilog $jobs/work
	slurm_conf "$gres" GresTypes=gpu,shard PrologFlags=Alloc,Contain,RunInJob Prolog=/etc/slurm/prolog Epilog=/etc/slurm/epilog \
		PrologEpilogTimeout=120 MinJobAge=900 KillWait=3
	start_slurm
	until_true 120 node_is_idle
}
# submit NAME SHARDS MEMORY as bob, prints the id.
submit() {
	setpriv --reuid bob --regid bob --init-groups sbatch --parsable --chdir=$jobs -o %x.out -J "$1" --gres=shard:"$2" $jobs/work "$3"
}
key_of() { echo "slurm:lab:$1:0"; }
uses() { # uses KEY BYTES
	[ "$(field "[.leases[] | select(.engine.key == \"$1\") | .gpu_memory.used // 0] | add // 0")" -ge "$2" ]
}
job_is() { [[ $(scontrol show job "$1") == *"JobState=$2"* ]]; }
no_jobs() { [ -z "$(squeue -h)" ] && [ -z "$(find "/sys/fs/cgroup$scope" -name 'job_*' 2>/dev/null)" ]; }
# on_gpu INDEX prints who has it: tenant, user, GiB.
on_gpu() {
	field ".gpus[$1].uuid as \$u | .leases[] | select(.gpus == [\$u]) | \"\\(.tenant) \\(.user // \"-\") \\((.gpu_memory.limit // 0) / 1073741824)\"" | sort
}
end_job_of_user() { # end_job_of_user TENANT GRANT
	kill -TERM "$(job "$1" "$2")"
	until_true 60 ended "$(job "$1" "$2")"
}
opens_of_user() { # opens_of_user TENANT GRANT prints how alice opens the nodes in a lease
	setpriv --reuid alice --regid alice --init-groups env -i PATH=/usr/bin:/bin \
		gpushare run -q -t "$1" --grant "$2" -- bash -c "$opens" opens $root/dev/nvidia{0,1,2} | xargs echo
}
