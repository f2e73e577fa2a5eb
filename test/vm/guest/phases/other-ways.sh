# What real programs of a host give a user: a GPU without a lease, a way out of a lease, or power over others. Logins are closed.
# checks: closed ssh user_manager at other_user polkit machine system_manager inside oom rootless

. /opt/lab/guest/product.sh
. /opt/lab/guest/login-filter.sh

try=/run/lab/open-nodes.sh

check_closed() {
	cat >$try <<<"$opens"
	chmod 0644 $try
	[ -s "$closed" ] || make_closed
	gpushare apply -f "$closed" >/run/lab/other-ways.apply 2>&1 || die "$(cat /run/lab/other-ways.apply)"
	filter_active
}

# A remote login, and a lease that is started in it.
check_ssh() {
	want "GPU 1 and GPU 4 over ssh" "$(ssh_as alice "bash $try $root/dev/nvidia1 $root/dev/nvidia4" | xargs)" "denied through"
	want "a lease's GPU and another over ssh" "$(ssh_as alice "gpushare run -q -t vision --grant big -- bash $try $root/dev/nvidia2 $root/dev/nvidia1" | xargs)" "through denied"
}

# The user's own service manager starts processes outside of the session, and may not move any there.
check_user_manager() {
	local out
	want "GPU 1 in a service of the user" "$(ssh_as alice "systemd-run --user --quiet --wait --pipe bash $try $root/dev/nvidia1")" denied
	if out=$(ssh_as alice "systemd-run --user --quiet --scope bash $try $root/dev/nvidia1" 2>&1); then
		want "GPU 1 in a scope of the user" "$out" denied
	else
		note "a scope from an ssh login: $out"
	fi
	out=$(ssh_as alice "gpushare run -q -t vision --grant big -- systemd-run --user --quiet --wait --pipe bash $try $root/dev/nvidia1" | xargs)
	want "another GPU in a service that is started from a lease" "$out" denied
}

# as_other COMMAND... must not run it as bob, nor as root.
as_other() {
	local out
	rm -f /tmp/as-other
	out=$(ssh_as alice "$*" 2>&1) && die "alice could run: $*: $out"
	note "$*: ${out:0:160}"
	[ ! -e /tmp/as-other ] || die "it ran as $(stat -c %U /tmp/as-other): $*"
}

check_other_user() {
	as_other su bob -c "'touch /tmp/as-other'"
	as_other su -c "'touch /tmp/as-other'"
	as_other systemd-run --no-ask-password --user --machine=bob@ --wait touch /tmp/as-other
	command -v run0 >/dev/null || note "systemd $(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p') has no run0"
	! command -v run0 >/dev/null || as_other run0 --no-ask-password touch /tmp/as-other
	as_other machinectl --no-ask-password shell bob@.host /bin/touch /tmp/as-other
	as_other machinectl --no-ask-password shell root@.host /bin/touch /tmp/as-other
	as_other machinectl --no-ask-password shell alice@.host /bin/touch /tmp/as-other
	as_other pkexec --user bob touch /tmp/as-other
	as_other pkexec touch /tmp/as-other
}

# polkit answers for root's services, with the rules of the distribution. A user adds no rule.
check_polkit() {
	local action out
	active polkit.service || die "no call asked polkit"
	for action in org.freedesktop.systemd1.manage-units org.freedesktop.machine1.host-shell org.freedesktop.machine1.shell org.freedesktop.policykit.exec; do
		out=$(ssh_as alice "pkcheck --action-id $action --process \$\$" 2>&1) && die "polkit allows alice $action: $out"
		[[ $out == *"uthoriz"* ]] || die "polkit did not answer: $out"
	done
	as_other cp /etc/hostname /etc/polkit-1/rules.d/00-alice.rules
	as_other cp /etc/hostname /usr/share/polkit-1/rules.d/00-alice.rules
}

# A shell that root starts by machinectl is a login of its user: it is closed as the others are, and a lease in it is as elsewhere.
check_machine() {
	local out
	shell_as_alice "bash $try $root/dev/nvidia1 $root/dev/nvidia4; sed -n s/^0:://p /proc/self/cgroup"
	out=$(cat /run/lab/machine.out)
	[[ $out == "denied through /user.slice/user-2001.slice/"* ]] || die "in a shell of machinectl: $out"
	shell_as_alice "gpushare run -q -t vision --grant big -- bash $try $root/dev/nvidia2 $root/dev/nvidia1"
	want "a lease's GPU and another in a shell of machinectl" "$(cat /run/lab/machine.out)" "through denied"
}
shell_as_alice() { # It has a terminal of its own, and its lines end as those of a terminal do.
	rm -f /home/alice/machine.out
	machinectl --quiet shell alice@.host /bin/bash -c "{ $1; } >/home/alice/machine.out 2>&1" </dev/null >/run/lab/machine.err 2>&1 || true
	until_true 60 test -s /home/alice/machine.out
	xargs </home/alice/machine.out >/run/lab/machine.out
}

# A job of at runs in the unit of at, outside of the login that wrote it.
check_at() {
	rm -f /home/alice/at.opens /home/alice/at.leased
	ssh_as alice "echo 'bash $try $root/dev/nvidia1 $root/dev/nvidia4 >at.opens; gpushare run -q -t vision --grant big -- bash $try $root/dev/nvidia2 $root/dev/nvidia1 >at.leased 2>&1; touch at.done' | at -M now" 2>/dev/null
	until_true 150 test -e /home/alice/at.done
	want "GPU 1 and GPU 4 in a job of at" "$(xargs </home/alice/at.opens)" "denied through"
	want "a lease's GPU and another in a job of at" "$(xargs </home/alice/at.leased)" "through denied"
}

# A local active user manages no unit of the system.
check_system_manager() {
	as_other systemd-run --no-ask-password --wait touch /tmp/as-other
	as_other systemd-run --no-ask-password --scope touch /tmp/as-other
	as_other systemctl --no-ask-password restart gpushared.service
	as_other systemctl --no-ask-password set-property --runtime user.slice DevicePolicy=auto
	as_other systemctl --no-ask-password kill gpushared.service
	as_other loginctl --no-ask-password terminate-user bob
	filter_active
}

# Programs that change the user, the group or the session inside of a lease stay in it.
check_inside() {
	local out
	out=$(ssh_as alice "gpushare run -q -t vision --grant big -- sg alice -c 'bash $try $root/dev/nvidia2 $root/dev/nvidia1'" | xargs)
	want "sg in a lease" "$out" "through denied"
	out=$(ssh_as alice "gpushare run -q -t vision --grant big -- setsid -w unshare -Urpf bash $try $root/dev/nvidia2 $root/dev/nvidia1" | xargs)
	want "namespaces in a lease" "$out" "through denied"
	out=$(ssh_as alice "echo $root/dev/nvidia1 | gpushare run -q -t vision --grant big -- xargs bash $try" | xargs)
	want "another GPU by xargs in a lease" "$out" denied
	out=$(ssh_as alice "unshare -Ur gpushare run --detach -t vision --grant big -- true" 2>&1) && die "a detached command left its user namespace: $out"
	[[ $out == *"would be lost: user namespace"* ]] || die "the refusal does not name the user namespace: $out"
}

# A user cannot choose whom the kernel kills for memory, and has a tenth of the daemon's part of the processor.
check_oom() {
	local neighbour out
	want "the daemon's cgroup" "$(property gpushared.service ControlGroup)" /gpushared.slice/gpushared.service
	want "its part of the processor" "$(cat "$cgroot/gpushared.slice/cpu.weight")" 1000
	want "the daemon's oom_score_adj" "$(cat "/proc/$(property gpushared.service MainPID)/oom_score_adj")" -900
	neighbour=$(job speech serve)
	for pid in "$neighbour" "$(property gpushared.service MainPID)"; do
		out=$(ssh_as alice "echo 1000 >/proc/$pid/oom_score_adj" 2>&1) && die "alice could change the oom_score_adj of pid $pid"
		[[ $out == *"ermission denied"* ]] || die "it failed for another reason: $out"
	done
	out=$(ssh_as alice "echo -500 >/proc/self/oom_score_adj" 2>&1) && die "alice could protect a process"
	[[ $out == *"ermission denied"* ]] || die "it failed for another reason: $out"
	out=$(ssh_as alice "gpushare run -q -t vision --grant big -- bash -c 'echo -500 >/proc/self/oom_score_adj'" 2>&1) && die "alice could protect a process of a lease"
	[[ $out == *"ermission denied"* ]] || die "it failed for another reason in a lease: $out"
	want "the oom_score_adj of a detached command" "$(ssh_as alice 'echo 300 >/proc/self/oom_score_adj; id=$(gpushare run -q --detach -t vision --grant big -- cat /proc/self/oom_score_adj); gpushare lease logs -f $id' 2>/dev/null)" 300
}

# A rootless container of podman without cgroups of its own stays in the lease, with the processes that podman leaves.
check_rootless() {
	local rootfs=/home/alice/rootfs id inside
	install -d -o alice -g alice $rootfs $rootfs/bin $rootfs/proc $rootfs/dev $rootfs/sys $rootfs/tmp $rootfs/etc $rootfs/run $rootfs/var
	install -o alice -g alice /bin/busybox $rootfs/bin/busybox
	loginctl enable-linger alice # Else /run/user/2001, which podman uses, is removed ten seconds after the login.
	id=$(ssh_as alice "gpushare run -q --detach -t vision --grant big -- podman --storage-driver=vfs --root=/home/alice/s --runroot=/run/user/2001/s run --rm --cgroups=disabled --network=none --log-driver=none --rootfs $rootfs /bin/busybox sleep 1234")
	until_true 60 in_container
	inside=$(unit_of "$(pgrep -xf '/bin/busybox sleep 1234')")
	[[ $inside == /gpushare.slice/gpushare-vision.slice/*"$id"* ]] || die "the container is in $inside, the lease is $id"
	gpushare lease stop "$id"
	until_true 20 no_container
	loginctl disable-linger alice
}
in_container() { [ -n "$(pgrep -xf '/bin/busybox sleep 1234')" ]; }
no_container() { ! in_container; }
