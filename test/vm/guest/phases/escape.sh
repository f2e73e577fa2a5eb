# Processes leave a lease, and logins and units are adopted, by the means that systemd has.
# checks: before job frozen sibling child descendants run_scope deny allow login per_login unit restored

. /opt/lab/guest/product.sh
. /opt/lab/guest/escape.sh

check_before() {
	loginctl enable-linger alice
	until_true 60 test -S /run/user/2001/bus
	[ -e /sys/fs/bpf/gpushare/gpushare/fork ] || die "the record of the processes of leases is not pinned"
	spec_with "isolation: {migration: detect}" ""
}

# From a login shell: the job itself is moved to a cgroup without device rules.
check_job() {
	start_member "exec sleep 600"
	local began
	began=$(uptime_ms)
	escape alice "$pid" lab-escape-1.scope || die "the user's manager refused: it did not move the process, so the escape was not tested"
	want_ended "the job" "$pid" "$began"
	journalctl -u gpushared -n 200 --no-pager | grep "a process left its lease" >/dev/null || die "the escape was not logged"
}

check_frozen() {
	start_member "exec sleep 600"
	freeze "$(leaf_of "$pid")"
	local began
	began=$(uptime_ms)
	escape alice "$pid" lab-escape-2.scope || die "the user's manager refused"
	want_ended "the frozen job" "$pid" "$began"
}

# By a sibling, from inside the lease.
check_sibling() {
	start_member "sleep 600 & busctl --user call $manager StartTransientUnit 'ssa(sv)a(sa(sv))' lab-escape-3.scope fail 1 PIDs au 1 \$! 0 && echo moved \$!; wait; sleep 600"
	local began child
	began=$(uptime_ms)
	until_true 20 grep -q '^moved' /run/lab/member.out
	child=$(sed -n 's/^moved //p' /run/lab/member.out)
	want_ended "the one that was moved" "$child" "$began"
	[ -d "/proc/$pid" ] || die "its sibling, which did not move, was stopped too"
	kill -KILL "$pid"
	until_true 10 ended "$pid"
}

# From a service of the user manager: user@.service makes the call.
check_child() {
	start_member "exec sleep 600"
	local began
	began=$(uptime_ms)
	login alice "systemd-run --user --quiet --wait busctl --user call $manager StartTransientUnit 'ssa(sv)a(sa(sv))' lab-escape-4.scope fail 1 PIDs au 1 $pid 0" ||
		die "the user's manager refused"
	want_ended "the job" "$pid" "$began"
}

# A process that was never seen inside: its parents have ended, or never were in the lease, and it is in a session of its own.
check_descendants() {
	local way began child
	cat >/run/lab/fork-daemon <<-'END'
		#!/bin/sh
		setsid sh -c 'setsid sleep 600 <&- >&- 2>&- & echo left $!'
	END
	cat >/run/lab/fork-sibling <<-'END'
		#!/usr/bin/perl
		# clone with CLONE_PARENT: the new process is a child of the parent of this one.
		use POSIX;
		$| = 1;
		my $first = shift; # and that one has ended
		select(undef, undef, undef, 0.01) while $first && getppid() == $first;
		my $pid = syscall(56, 0x8000 | 17, 0, 0, 0, 0);
		if ($pid == 0) { POSIX::setsid(); open STDOUT, ">/dev/null"; exec "sleep", "600" }
		print "left $pid\n";
		exec "sleep", "600" unless $first;
	END
	cat >/run/lab/fork-orphan <<-'END'
		#!/bin/sh
		/run/lab/fork-sibling $$ &
	END
	chmod 0755 /run/lab/fork-*
	for way in daemon sibling orphan; do
		for _ in 1 2 3; do
			case $way in
			sibling) start_member "exec /run/lab/fork-$way" ;; # Its parent is outside of the lease.
			*) start_member "/run/lab/fork-$way; exec sleep 600" ;;
			esac
			until_true 60 grep -q '^left' /run/lab/member.out
			child=$(sed -n 's/^left //p' /run/lab/member.out)
			began=$(uptime_ms)
			escape alice "$child" "lab-descendant-$child.scope" || die "the user's manager refused"
			want_ended "a descendant that was never seen ($way)" "$child" "$began"
			kill -KILL "$pid"
			until_true 60 has_exited "$pid"
		done
	done
}

check_run_scope() {
	start_member "exec systemd-run --user --quiet --scope sleep 600"
	want_ended "systemd-run --user --scope" "$pid" "$(uptime_ms)"
}

# migration: deny: no process escapes, and doctor names what stops working.
check_deny() {
	spec_with "" "" # It is the default.
	grep -q "rootless podman" /run/lab/escape.apply || die "apply does not say what stops working: $(cat /run/lab/escape.apply)"
	test -f /etc/dbus-1/system.d/gpushare-migration.conf || die "there is no policy: $(cat /run/lab/escape.apply)"
	start_member "exec sleep 600"
	local leaf out
	leaf=$(leaf_of "$pid")
	escape alice "$pid" lab-escape-5.scope || true # either the job of the unit fails or the call
	sleep 3 # two process-list periods: an escaped process would be stopped
	want "where the job is" "$(leaf_of "$pid")" "$leaf"
	if out=$(ssh_as alice 'systemd-run --user --quiet --scope sed -n s/^0:://p /proc/self/cgroup' 2>&1); then
		die "a scope from an ssh login works, contrary to what doctor says: $out"
	fi
	out=$(login alice 'systemd-run --user --quiet --wait --pipe systemd-run --user --quiet --scope sed -n s/^0:://p /proc/self/cgroup')
	[[ $out == /user.slice/user-2001.slice/user@2001.service/* ]] || die "a scope from inside the user's services: $out"
	gpushare doctor >/run/lab/doctor.out || true
	grep -q "rootless podman" /run/lab/doctor.out || die "doctor does not name what stops working: $(cat /run/lab/doctor.out)"
	kill -KILL "$pid"
	until_true 10 ended "$pid"
}

check_allow() {
	spec_with "isolation: {migration: detect}" ""
	[ ! -e /etc/dbus-1/system.d/gpushare-migration.conf ] || die "the policy is still there"
	local out
	out=$(ssh_as alice 'systemd-run --user --quiet --scope sed -n s/^0:://p /proc/self/cgroup')
	[[ $out == /user.slice/user-2001.slice/user@2001.service/* ]] || die "a scope from an ssh login: $out"
}

# A login is adopted into its grant and opens the GPU of that grant. The adoption ends with the spec.
check_login() {
	cat >/run/lab/opens.sh <<<"$opens"
	chmod 0644 /run/lab/opens.sh
	spec_with "isolation: {logins: closed}" "adopt: {logins: dev, units: {lab-hub.service: dev}};per_login: {memory: 512MiB}"
	until_true 30 is_adopted login "alice user-2001.slice dev"
	until_true 60 login_opens_its_own
	want "alice's login opens GPU 1 and GPU 0" "$(ssh_as alice "bash /run/lab/opens.sh $root/dev/nvidia1 $root/dev/nvidia0" | tr '\n' ' ')" "through denied "
	want "bob's login opens GPU 1 and GPU 0" "$(ssh_as bob "bash /run/lab/opens.sh $root/dev/nvidia1 $root/dev/nvidia0" | tr '\n' ' ')" "denied denied "
	systemctl restart gpushared
	until_true 60 answers
	until_true 30 is_adopted login "alice user-2001.slice dev"
}

login_opens_its_own() { [ "$(ssh_as alice "bash /run/lab/opens.sh $root/dev/nvidia1")" = through ]; }

check_per_login() {
	until_true 20 has_memory 2001 536870912
	want "MemoryMax in systemd" "$(property user-2001.slice MemoryMax)" 536870912
	rm -f /home/bob/in
	ssh_as bob 'touch in && sleep 20' & # The slice of an earlier login may be there until it has ended.
	until_true 60 test -f /home/bob/in
	want "bob's limit" "$(memory_of 2002)" max
	gpushare tenant show vision >/run/lab/tenant.out
	grep -q "per_login.memory.*each applies by itself" /run/lab/tenant.out || die "tenant show says: $(cat /run/lab/tenant.out)"
	systemctl set-property --runtime user-2001.slice MemoryMax=1G
	until_true 30 has_memory 2001 536870912
	systemctl daemon-reload
	sleep 1
	until_true 30 has_memory 2001 536870912
	spec_with "isolation: {logins: closed}" "adopt: {logins: dev, units: {lab-hub.service: dev}}"
	until_true 20 has_memory 2001 max
}

check_unit() {
	systemd-run --quiet --unit=lab-hub.service --uid=bob sleep 600
	until_true 20 is_adopted unit "- lab-hub.service dev"
	local main cg
	main=$(property lab-hub.service MainPID)
	cg=$(cgroup_of lab-hub.service)
	until_true 30 opens_its_own "$cg" # Access is granted with the lease.
	want "the unit opens GPU 1 and GPU 0" "$(opens_as_bob "$cg" $root/dev/nvidia1 $root/dev/nvidia0)" "through denied "
	systemctl stop lab-hub.service
	until_true 20 is_adopted unit ""
}
opens_its_own() { [ "$(opens_as_bob "$1" $root/dev/nvidia1)" = "through " ]; }
opens_as_bob() { # a process of bob's in the unit's cgroup
	bash -c 'echo $$ >"$1/cgroup.procs" && exec setpriv --reuid bob --regid bob --init-groups bash /run/lab/opens.sh "${@:2}"' place "$cgroot$1" "${@:2}" | tr '\n' ' '
}

check_restored() {
	gpushare apply -f "$accepted" >/run/lab/escape.apply 2>&1 || die "$(cat /run/lab/escape.apply)"
	until_true 20 is_adopted login ""
	loginctl disable-linger alice
}
