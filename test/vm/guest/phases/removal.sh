# The package is removed and purged. Removal is refused while the node is managed. After unmanage and removal the host is as
# before the installation.
# checks: removal_refused needs_force unmanage_all removal nothing_is_left purge gpus_as_found

. /opt/lab/guest/product.sh

# The node is managed and a lease runs: the removal is refused, and nothing is removed.
check_removal_refused() {
	local out code=0
	gpushare apply -f "$spec"
	[ -d "/proc/$(job vision train)" ] || start_job alice vision train --memory 1GiB --kernel 250ms --queue 2 --seconds 3000
	out=$(dpkg -r gpushare 2>&1) || code=$?
	[ "$code" != 0 ] || die "the product was removed under a living lease: $out"
	[[ $out == *"gpushare unmanage"* ]] || die "the refusal does not say what to do: $out"
	note "$out"
	[ -x /usr/sbin/gpushared ] || die "the daemon's file was removed"
	want "the package" "$(dpkg-query -W -f '${db:Status-Status}' gpushare)" installed
	active gpushared.service
	[ -d "/proc/$(job vision train)" ] || die "the job has ended"
	want_open "$(leaf_of "$(job vision train)")" $root/dev/nvidia1 denied
}

check_needs_force() {
	local out code=0
	out=$(gpushare unmanage --all 2>&1) || code=$?
	want "the exit code with a living lease" "$code" 5
	note "$out"
	[ -d "/proc/$(job vision train)" ] || die "the job has ended"
}

check_unmanage_all() {
	gpushare unmanage --all --force
	until_true 30 ended "$(job vision train)"
	local code=0
	gpushare unmanage --check || code=$?
	want "the exit code of unmanage --check" "$code" 0
	until_true 20 no_slices
	want "drop-ins of gpushare" "$(find /etc/systemd/system.control /run/systemd/system.control -name 'gpushare*' 2>/dev/null || true)" ""
	[ ! -d "$cgroot/gpushare.slice" ] || want "what is left in gpushare.slice" \
		"$(find "$cgroot/gpushare.slice" -mindepth 1 -type d -not -path '*gpushare-nvml*' | head -n 3)" ""
	# No process is restricted any more.
	want_open / $root/dev/nvidia0 through
	want "opening a GPU in a login" "$(login carol "bash -c 'exec 3<>$root/dev/nvidia1' 2>&1" | grep -c 'No such device or address')" 1
}
no_slices() { [ -z "$(systemctl list-units --no-legend --plain 'gpushare-*.slice')" ]; }

check_removal() {
	rm -rf /etc/systemd/system/gpushared.service.d # The lab's own.
	local out
	out=$(dpkg -r gpushare 2>&1)
	note "$out"
	[[ $out != *"changed on disk"* ]] || die "the removal warns of units that it changed: $out"
	until_true 30 nothing_runs
}
nothing_runs() { ! pgrep -f '/usr/(sbin/gpushared|libexec/gpushare/)' >/dev/null; }

# The removal of a package keeps settings and state, and the runtime directory until the next boot.
check_nothing_is_left() {
	bash /opt/lab/guest/snapshot.sh >/run/lab/after
	local left
	left=$(diff "$state/before-install" /run/lab/after | sed -n 's/^[<>]/&/p' | grep -vE '^> /((etc|var/lib)/gpushare(/|$)|var/lib/dpkg/info/gpushare\.)' || true)
	want "what differs from before the product was installed" "$left" ""
}

check_purge() {
	[ -f /var/lib/gpushare/state.json ] || die "the removal did not keep the state"
	dpkg -P gpushare
	want "what a purge leaves" "$(ls -d /etc/gpushare /var/lib/gpushare /run/gpushare /usr/libexec/gpushare /usr/share/gpushare /var/lib/dpkg/info/gpushare.* 2>/dev/null || true)" ""
}

check_gpus_as_found() {
	want "instances of the virtual GPUs" "$(truth | gojq '[.gpus[] | (.instances // [])[]] | length')" 0
	note "$(truth | gojq -c '[.gpus[] | {mig: .mig, mode: .compute_mode}]')"
}
