# The role of the Ansible collection, by the Ansible of this Debian, on a host without the package: the first run installs, starts and
# applies; the second changes nothing; --check writes nothing; a mistake changes nothing.
# checks: installs in_force changes_nothing_again check_writes_nothing mistake
# seconds: 330

. /opt/lab/guest/product.sh

plays=/run/lab/plays

# play NAME [OPTION...] starts a run of the role. An emulated processor needs a minute for it, or two.
play() {
	mkdir -p $plays/collections/ansible_collections/gpushare
	ln -sfn /opt/lab/ansible $plays/collections/ansible_collections/gpushare/node
	cat >$plays/play.yml <<-PLAY
		- hosts: localhost
		  connection: local
		  gather_facts: false
		  roles:
		    - role: gpushare.node.node
		      vars:
		        gpushare_package: /opt/lab/packages/gpushare.deb
		        gpushare_admins: [carol]
		        gpushare_settings: {host_root: $root, driver_read_timeout: 15s, sample_interval: 3s}
		        gpushare_spec: "{{ lookup('ansible.builtin.file', source) }}"
	PLAY
	local name=$1
	shift
	rm -f "$plays/$name".{out,code}
	(
		code=0
		cd $plays && env HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 ANSIBLE_COLLECTIONS_PATH=$plays/collections \
			ANSIBLE_LOCALHOST_WARNING=false ANSIBLE_PIPELINING=true ANSIBLE_PYTHON_INTERPRETER=/usr/bin/python3 \
			ansible-playbook -i localhost, play.yml -e "source=${source:-$spec}" "$@" >"$plays/$name.out" 2>&1 || code=$?
		echo $code >"$plays/$name.code"
	) </dev/null >/dev/null 2>&1 &
	disown
}
await() { until_true 320 test -s "$plays/$1.code"; }
# recap NAME EXPRESSION prints a count of the last line of a run.
recap() { sed -n "s/^localhost .*$2=\([0-9]*\).*/\1/p" "$plays/$1.out"; }
failed_tasks() { grep -A3 -E '^(fatal|failed):' "$plays/$1.out" | tr '\n' ' '; }

check_installs() {
	want "the package before" "$(dpkg-query -W -f '${db:Status-Status}' gpushare 2>/dev/null || true)" ""
	install_lab_profiles
	[ -d /usr/local/lib/gpusim ] || install_virtual_gpus # Where the phase runs alone.
	systemctl daemon-reload
	systemctl start gpusim.service
	note "ansible-core $(dpkg-query -W -f '${Version}' ansible-core)"
	play first
	await first
	note "$(tail -n 2 $plays/first.out | xargs)"
	[ "$(cat $plays/first.code)" = 0 ] || die "$(failed_tasks first)"
	play second # For the check after the next one.
}

check_in_force() {
	want "the package" "$(dpkg-query -W -f '${db:Status-Status}' gpushare)" installed
	local unit
	for unit in gpushared.socket gpushared.service gpushare-thaw.service gpushare-login-filter.service; do
		want "$unit" "$(systemctl is-enabled "$unit")" enabled
		active "$unit" || die "$unit is not active"
	done
	want "enforce" "$(field .node.enforce)" on
	want "GPUs that are not ok" "$(field '[.gpus[] | select(.state != "ok")] | length')" 0
	want "administrators" "$(getent group gpushare-admin | cut -d: -f4)" carol
	[ "$(recap first changed)" -ge 3 ] || die "the first run changed $(recap first changed) tasks: $(grep -B2 '^changed' $plays/first.out | xargs)"
}

check_changes_nothing_again() {
	await second
	want "the second run" "$(cat $plays/second.code)" 0
	want "changed tasks of the second run" "$(recap second changed)" 0
	want "the generation" "$(field .node.generation)" 1
	sed 's/share: 30%/share: 29%/' "$spec" >$plays/other.yaml
	cmp -s "$spec" $plays/other.yaml && die "the other spec is the same"
	truth | gojq .counters.writes >$plays/writes
	gpasswd --add bob gpushare-admin >/dev/null # Not in the list of administrators.
	source=$plays/other.yaml play check --check --diff
}

check_check_writes_nothing() {
	await check
	want "the run with --check" "$(cat $plays/check.code)" 0
	[ "$(recap check changed)" -ge 1 ] || die "--check does not say that the spec would change"
	grep -q '^-bob$' $plays/check.out || die "--diff does not show that bob would be removed from the administrators"
	want "administrators" "$(getent group gpushare-admin | cut -d: -f4)" carol,bob
	grep -q '29%' $plays/check.out || die "--diff does not show the change"
	want "the generation" "$(field .node.generation)" 1
	want "calls that changed a GPU" "$(truth | gojq .counters.writes)" "$(cat $plays/writes)"
	printf 'version: v1\ntenants: [{name: vision, grants: [{name: a, timeslice: {share: 130%%}}]}]\n' >$plays/wrong.yaml
	source=$plays/wrong.yaml play mistake --start-at-task "Put the spec in force"
}

check_mistake() {
	await mistake
	[ "$(cat $plays/mistake.code)" != 0 ] || die "a wrong spec was applied"
	grep -q '130%' $plays/mistake.out || die "the error does not name the mistake: $(failed_tasks mistake)"
	want "the generation" "$(field .node.generation)" 1
	want "GPUs that are not ok" "$(field '[.gpus[] | select(.state != "ok")] | length')" 0
}
