# Jobs of a real Slurm on a real systemd, with the scripts of examples/slurm, next to jobs of users on the same GPU.
# checks: site jobs places overuse ends daemon_killed restarts time_limit shares layout left
# seconds: 500

. /opt/lab/guest/product.sh
. /opt/lab/guest/slurm.sh

scripts=/usr/share/gpushare/examples/slurm
jobs=/run/lab/jobs
node=node1 # The name of the host begins as units of gpushare do.
scope=/system.slice/${node}_slurmstepd.scope
known=0,1,2,4
types=gpu,shard
flags=Alloc,Contain,RunInJob
# Before 24.05 the cgroup of a job comes after the Prolog. 22.05 also takes the files of an instance apart where there are shards.
old=no
if [[ $(slurmd -V) == *" 22."* ]]; then
	old=yes
	known=1,2,4
	flags=Alloc,Contain
fi

# slurm_spec is the spec of the lab, with a grant of the jobs on the GPU that its tenants share. Slurm places there and on a whole GPU.
slurm_spec() {
	sed "s/^  enforce: on/&\n  isolation: {logins: closed, units: [cron.service, ${scope##*/}]}/; s/share: 70%, gpu_memory: 24GiB/share: 40%, gpu_memory: 24GiB/
		/select: {index: 1}/a\    owner: slurm\n    share_with: [local]
		/select: {index: 2}/a\    owner: slurm
		/exclusive: 1/d" $spec
	cat <<-SPEC
		  - name: slurm
		    overuse: {grace: 12s} # for the comment, on an emulated processor
		    grants:
		      - {name: jobs, timeslice: {share: 30%, gpu_memory: 20GiB}, gpus: {index: 1}}
	SPEC
}
# gres leaves the GPU with MPS out: what gres.conf lacks is open to every job, as far as Slurm goes.
gres() { gpushare slurm gres --node "$node" --gpu $known "$@"; }
site_files() {
	gres >/etc/slurm/gres.conf
	slurm_conf "$(gres --json | gojq -r .gres)" GresTypes=$types PrologFlags=$flags Prolog=/etc/slurm/prolog \
		Epilog=/etc/slurm/epilog PrologEpilogTimeout=120 MinJobAge=900 KillWait=3 OverTimeLimit=0
}
site() {
	site_files
	start_slurm
	patiently 200 node_is_idle
}

# checked compares what Slurm knows. An emulated processor may take longer for a call of its programs than the 5 s that they are given.
checked() {
	local code=0
	gpushare slurm check --node "$node" >/run/lab/check.out 2>&1 || code=$?
	echo $code >/run/lab/check.code
	! grep -q 'did not answer within' /run/lab/check.out
}

# The scripts are given the time of an emulated processor. In them, gpushare is killer: it ends the daemon where a file says so.
own_scripts() {
	local at
	mkdir -p /run/lab/bin /run/lab/kill
	for at in prolog epilog; do
		printf '#!/bin/sh\ntrap "" TERM\nexport PATH=/run/lab/bin:/usr/sbin:/usr/bin:/sbin:/bin GPUSHARE_PROLOG_SECONDS=40\nexec %s/%s.sh\n' \
			$scripts $at >/etc/slurm/$at
	done
	cat >/run/lab/bin/gpushare <<-'SCRIPT'
		#!/bin/bash
		# Calls of the scripts. A file such as prolog-before ends the daemon before that call, or during or after it. After the end before
		# a call, the socket of the daemon has the call, so it is answered.
		. /opt/lab/guest/lib.sh
		due() { rm "/run/lab/kill/$1" 2>/dev/null && echo "$1" >>/run/lab/killed; }
		end() {
			local p
			p=$(property gpushared.service MainPID)
			[ "$p" = 0 ] || kill -KILL "$p"
		}
		! due "$2-before" || end
		if due "$2-during"; then
			daemon=$(property gpushared.service MainPID)
			# The daemon has the request and does not answer it.
			kill -STOP "$daemon"
			/usr/bin/gpushare "$@" &
			until_true 30 connected $!
			kill -KILL "$daemon"
			wait $!
			exit
		fi
		/usr/bin/gpushare "$@"
		code=$?
		! due "$2-after" || end
		exit $code
	SCRIPT
	sed -i '4i connected() { ls -l "/proc/$1/fd" 2>/dev/null | grep -q socket; }' /run/lab/bin/gpushare
	chmod +x /etc/slurm/prolog /etc/slurm/epilog /run/lab/bin/gpushare
	# work MEMORY uses that much of the GPU, busy MEMORY its time too, step MEMORY in a step of its own, which opens nodes before, and rest nothing.
	printf '#!/bin/sh\nexport GPUSIM_ROOT=%s\nunset CUDA_VISIBLE_DEVICES\nexec %s --gpu 1 --memory "$1" --hold\n' $root $burn >$jobs/work
	printf '#!/bin/bash\nbash -c %q opens %s | xargs echo nodes:\nexec srun %s/work "$1"\n' "$opens" "$(echo $root/dev/nvidia{0,1,2,3,4})" $jobs >$jobs/step
	printf '#!/bin/sh\nexport GPUSIM_ROOT=%s\nunset CUDA_VISIBLE_DEVICES\nexec %s --gpu 1 --memory "$1" --kernel 50ms --queue 2\n' $root $burn >$jobs/busy
	printf '#!/bin/sh\nexec sleep 3000\n' >$jobs/rest
	chmod +x $jobs/*
}

# patiently waits as until_true does, and leaves the processor to what it waits for.
patiently() {
	local end=$((SECONDS + $1)) what="${*:2}"
	shift
	until "$@"; do
		[ "$SECONDS" -lt "$end" ] || die "not within the time: $what; $(squeue -h -O JobID,State,Reason,RestartCnt | xargs); $(sinfo -h -o '%T %E'); $(keys)"
		nap 0.7
	done
}

submit() { # submit "PROGRAM [MEMORY]" SBATCH_OPTION... prints the id
	setpriv --reuid alice --regid alice --init-groups sbatch --parsable --chdir=$jobs -o %x.out "${@:2}" $jobs/$1
}
key_of() { echo "slurm:lab:$1:${2:-0}"; } # key_of JOB [RESTART]
# keys has all jobs with a lease but that of the time limit, which ends when its time is over.
keys() { field "[.leases[] | select(.engine and .state == \"running\") | .engine.key | select(. != \"$(key_of "$(id limit)")\")] | sort | join(\" \")"; }
have_keys() { [ "$(keys)" = "$(printf '%s\n' "$@" | sort | paste -sd" ")" ]; }
want_keys() { patiently 200 have_keys "$@"; }
state_of() { scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p'; }
is() { [ "$(state_of "$1")" = "$2" ]; }
uses() { # uses KEY BYTES: its tasks have that much
	[ "$(field ".leases[] | select(.engine.key == \"$1\") | .gpu_memory.used // 0")" -ge "$2" ]
}
id() { cat /run/lab/job-"$1"; }

check_site() {
	local out
	mkdir -p $jobs
	chown alice: $jobs
	[ -d "/proc/$(job vision dev)" ] || die "the job of a user has ended"
	slurm_spec >/run/lab/slurm.yaml
	gpushare apply --force -f /run/lab/slurm.yaml >/run/lab/apply.out 2>&1 || die "$(cat /run/lab/apply.out)"
	own_scripts
	site
	patiently 200 checked
	out=$(cat /run/lab/check.out)
	want "the exit code of the check" "$(cat /run/lab/check.code)" 6
	[[ $out == *"GPU 3 "*"open to every job"* && $out != *"GPU 1 "* && $out != *"GPU 2 "* ]] || die "the check says: $out"
}

# A batch job with a step, elements of an array, and a command of gpushare run: all on one GPU, each with its own lease, in one status.
check_jobs() {
	local batch array
	submit "work 512MiB" -J limit -t 1 --gres=shard:1 >/run/lab/job-limit
	batch=$(submit "step 2GiB" -J batch --requeue --gres=shard:4 --comment='gres/shard:9')
	array=$(submit rest -J array -a 1-2 --gres=shard:2)
	want_keys "$(key_of "$batch")" "$(key_of "$array")" "$(key_of $((array + 1)))"
	echo "$batch" >/run/lab/job-batch
	echo "$array" >/run/lab/job-array
	patiently 200 uses "$(key_of "$batch")" $((2 << 30))
	# Its lease begins next to those of the jobs.
	start_job bob speech dev --memory 1GiB --kernel 50ms --queue 2 --seconds 3000
	want "the leases on GPU 1" "$(field '.gpus[1].uuid as $u | [.leases[] | select(.gpus == [$u] and .gpu_memory.limit != 1073741824) |
		"\(.tenant) \(.user) \((.gpu_memory.limit // 0) / 1073741824)"] | sort | unique | join(", ")')" \
		"slurm alice 2, slurm alice 4, speech bob 24, vision alice 12"
	want "who places on it" "$(field '.gpus[1] | "\(.owner) \(.share_with | join(","))"')" "slurm local"
	gpushare lease stop "$(lease_of speech dev | cut -d' ' -f1)" >/dev/null
	until_true 20 ended "$(job speech dev)"
	note "$(gpushare lease list | tail -n +2)"
	[[ $(gpushare lease show --key "$(key_of "$batch")") == *"time share"* ]] || die "the lease does not say that its time share is not enforced"
}

# A job opens its GPU, none of another job, of a tenant, or that Slurm does not know.
check_places() {
	patiently 200 grep -qs ^ready $jobs/batch.out
	want "the nodes that the job opens" "$(cat $jobs/batch.out)" "nodes: denied through denied denied denied
ready"
}

# A job above its GPU memory is ended, and no other. Its output and its AdminComment say why.
check_overuse() {
	local job why='of 3 GiB GPU memory' before
	before=$(keys)
	systemd-run --quiet --unit lab-comments --setenv=GPUSHARE_PROLOG_SECONDS=40 $scripts/comments.sh lab
	job=$(submit "work 5GiB" -J over --gres=shard:3)
	patiently 200 is "$job" FAILED
	[[ $(cat $jobs/over.out) == *"gpushare: slurm/jobs"*"$why"* ]] || die "its output is: $(cat $jobs/over.out); $(journalctl -o cat -t gpushare-epilog)"
	[[ $(scontrol show job "$job") == *"AdminComment=gpushare: "*"$why"* ]] || die "Slurm knows: $(scontrol show job "$job"); $(journalctl -o cat -u lab-comments)"
	want_keys $before
	uses "$(key_of "$(id batch)")" $((2 << 30)) || die "a job that uses what its shards are has less"
	systemctl stop lab-comments
	note "$(tail -n 1 $jobs/over.out)"
}

# scancel ends the lease of its job alone. A requeued job has another lease in its second run.
check_ends() {
	local batch array first ended
	batch=$(id batch)
	array=$(id array)
	first=$(squeue -h -j "${array}_1" -o %A) # The last element has the id of the array.
	scancel "${array}_2"
	want_keys "$(key_of "$batch")" "$(key_of "$first")"
	scontrol requeue "$batch"
	want_keys "$(key_of "$first")"
	patiently 200 is "$batch" PENDING
	# Slurm gives the Epilog of a requeued job the number of its next run. With RunInJob the Epilog is a process of the lease.
	ended=$(gpushare lease show --key "$(key_of "$batch")")
	[[ $ended == *ended* ]] || die "the lease of the first run has not ended: $ended"
	[ $old = yes ] || [[ $ended == *"released by root"* ]] || die "the Epilog has not released it: $ended"
	# The second run has the cgroup of the first. Slurm lets two minutes pass for that, which are over here when the first has left nothing.
	patiently 200 left_nothing "$batch"
	scontrol update jobid="$batch" starttime=now
	want_keys "$(key_of "$first")" "$(key_of "$batch" 1)"
	scancel "$array"
	want_keys "$(key_of "$batch" 1)"
}
left_nothing() { [ ! -e "$cgroot$scope/job_$1" ] && ! pgrep -f "^slurmstepd: \\[$1\\." >/dev/null; } # left_nothing JOB

# The daemon ends before, during and after each call of the Prolog and of the Epilog, and while the job runs. A start of the daemon is long
# on an emulated processor, so each system has a half of these.
check_daemon_killed() {
	local at job others instants="prolog-before prolog-after show-before release-during"
	[ $old = no ] || instants="prolog-during show-during release-before release-after"
	others=$(keys)
	systemctl reset-failed gpushared.service
	for at in $instants; do touch "/run/lab/kill/$at"; done
	job=$(submit "work 512MiB" -J killed --gres=shard:1)
	want_keys $others "$(key_of "$job")"
	if [ $old = yes ]; then
		kill -KILL "$(property gpushared.service MainPID)"
	fi
	patiently 200 answers
	want_keys $others "$(key_of "$job")"
	patiently 200 uses "$(key_of "$job")" $((512 << 20))
	scancel "$job"
	patiently 200 is "$job" CANCELLED
	patiently 200 answers
	want_keys $others
	want "instants that were not met" "$(ls /run/lab/kill)" ""
	[[ $(sinfo -h -o %T) != *drain* ]] || die "the node is drained: $(sinfo -h -R -o %E)"
}

# A job runs on while slurmd is restarted. What ends while slurmctld is away gives its GPU memory back; the job ends, and its lease, when
# slurmctld is there again.
check_restarts() {
	local batch others
	batch=$(id batch)
	others=$(keys)
	systemctl restart slurmd.service
	want_keys $others
	patiently 200 uses "$(key_of "$batch" 1)" $((2 << 30))
	systemctl stop slurmctld.service
	pkill -TERM -u alice -f -- '--gpu 1 --memory 2GiB --hold$'
	patiently 200 uses_none "$(key_of "$batch" 1)"
	systemctl start slurmctld.service
	patiently 200 is "$batch" FAILED
	want_keys
}
uses_none() { [ "$(field "[.leases[] | select(.engine.key == \"$1\") | .gpu_memory.used // 0] | add // 0")" = 0 ]; }

check_time_limit() {
	patiently 240 is "$(id limit)" TIMEOUT
	[[ $(cat $jobs/limit.out) == ready*"DUE TO TIME LIMIT"* ]] || die "its output is: $(cat $jobs/limit.out)"
	[[ $(gpushare lease show --key "$(key_of "$(id limit)")") == *ended* ]] || die "its lease has not ended"
	patiently 200 node_is_idle
}

# Two jobs that keep their GPU busy next to a user have the parts of its time that are theirs, as the spec permits to freeze jobs.
check_shares() {
	local first second pids=() before after
	sed 's/^  enforce: on/&\n  engine: {freeze: [slurm]}/' /run/lab/slurm.yaml >/run/lab/shares.yaml
	gpushare apply --force -f /run/lab/shares.yaml >/run/lab/apply.out 2>&1 || die "$(cat /run/lab/apply.out)"
	first=$(submit "busy 1GiB" -J first --gres=shard:2)
	second=$(submit "busy 1GiB" -J second --gres=shard:2)
	rm -f /run/lab/met
	patiently 400 had_shares "$(key_of "$first")" "$(key_of "$second")"
	pids=("$(task_of "$first")" "$(task_of "$second")" "$(job vision dev)")
	read -ra before < <(busy_of "${pids[@]}" | xargs)
	nap 20
	read -ra after < <(busy_of "${pids[@]}" | xargs)
	note "busy within 20 s: $((after[0] - before[0])) and $((after[1] - before[1])) ms of the jobs, $((after[2] - before[2])) ms of the user; $(shares | paste -sd';')"
	# A job that is frozen in turns ends as another one.
	scancel "$first" "$second"
	want_keys
	gpushare apply --force -f /run/lab/slurm.yaml >/run/lab/apply.out 2>&1 || die "$(cat /run/lab/apply.out)"
	patiently 200 node_is_idle
}
shares() {
	field '.leases[] | select(.share.due) | "\(.engine.key // .tenant) entitled \(.share.entitled) due \(.share.due) busy \(.share.busy) enforced \(.share.enforced) \(.share.state) frozen \(.share.freezes.count // 0) \(.share.why // .share.reason // "")"'
}
# had_shares KEY... is true when the share of each of these was met, as measured, and it was frozen for the others. It may be for a
# moment: slices on an emulated processor are not exact.
had_shares() {
	local key
	shares | grep ' enforced true met ' | grep -v ' frozen 0 ' >>/run/lab/met || true
	for key; do grep -q "^$key " /run/lab/met || return 1; done
}
# task_of JOB prints the process of its task that uses the GPU.
task_of() {
	local p
	for p in $(pgrep -u alice -f -- '--gpu 1 --memory 1GiB --kernel'); do
		if grep -q "/job_$1/" "/proc/$p/cgroup"; then echo "$p"; fi
	done
}

# A layout changes after a drain: apply drains the node, waits for its job, and leaves the node drained until Slurm knows the instances.
check_layout() {
	local job code=0 shared=denied
	job=$(submit rest -J whole --gres=gpu:h100:1)
	patiently 200 is "$job" RUNNING
	# Jobs with instances have no lease, so their GPUs are not closed to them from then on.
	sed "s/, ${scope##*/}//; /select: {index: 2}/,/mode:/s/mode: exclusive/mode: mig\n    mig: {layout: [3g.40gb, 3g.40gb]}/" \
		/run/lab/slurm.yaml >/run/lab/layout.yaml
	gpushare apply -f /run/lab/layout.yaml --slurm-node "$node" >/run/lab/apply.out 2>&1 || code=$?
	want "the exit code next to a job, of $(cat /run/lab/apply.out)" $code 5
	drain_and_apply &
	patiently 200 waits_for_jobs
	scancel "$job"
	code=0
	wait $! || code=$?
	want "the exit code with a drain, of $(cat /run/lab/drain.out)" $code 6
	want "the state of the node" "$(sinfo -h -o %T)" drained
	known=0,1,2,4
	# 22.05 has either instances or shards.
	[ $old = no ] || known=0,2,4 shared=through types=gpu
	systemctl stop slurmd.service slurmctld.service
	site_files
	start_slurm
	patiently 200 checked
	[[ $(cat /run/lab/check.out) != *"GPU 2 "* ]] || die "the check says: $(cat /run/lab/check.out)"
	patiently 200 resumed
	want "what a job with all instances opens" \
		"$(cd /tmp && as alice srun -t 1 --gres=gpu:3g.40gb:3 bash -c "$opens" opens $root/dev/nvidia{0,1,2} 2>&1 | xargs)" "through $shared through"
}
# resumed resumes the node. slurmctld refuses it until slurmd has said what it has, and of a node that is idle: one whose call did not
# answer in time is.
resumed() {
	if node_is_idle; then return 0; fi
	scontrol update nodename="$node" state=resume || true
	return 1
}
# An emulated processor may take longer for a call of scontrol than its 5 s: then the node is resumed, and it is tried again.
drain_and_apply() {
	local code
	while :; do
		code=0
		gpushare apply --drain -f /run/lab/layout.yaml --slurm-node "$node" >/run/lab/drain.out 2>&1 || code=$?
		if [ $code = 6 ] || ! grep -q 'did not answer within 5s' /run/lab/drain.out; then
			return $code
		fi
		scontrol update nodename="$node" state=resume || true
	done
}
waits_for_jobs() { grep -q '^waiting for the jobs of' /run/lab/drain.out; }

no_cgroups() { [ -z "$(find "$cgroot$scope" -name 'job_*')" ]; }
check_left() {
	want_keys
	patiently 200 no_cgroups # Slurm removes them a moment after the job.
	want "leases of Slurm" "$(field '[.leases[] | select(.tenant == "slurm")] | length')" 0
	# An emulated processor takes longer for a reading than the product permits itself.
	want "conditions" "$(field '[.node.conditions // [] | .[] | select(.kind != "not-enforced" and .kind != "driver-time") | .message] | join("; ")')" ""
	stop_slurm
	gpushare apply --force -f "$accepted" >/run/lab/apply.out 2>&1 || die "$(cat /run/lab/apply.out)"
	[ -d "/proc/$(job vision dev)" ] || die "the job of the user has ended"
	rm -rf $jobs
}
