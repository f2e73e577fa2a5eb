# Who reaches the sockets of an MPS control daemon that runs as a unit: the members of a tenant with a grant of MPS on the GPU, and the
# users of its leases.
# checks: members others user_of_a_lease privileged_directory restored

. /opt/lab/guest/product.sh

# The control daemon is that of the virtual node (gpusim/mpsd), as a unit of this systemd.
directory() { # directory prints that of the control daemon: t is for tenants, p for gpushare
	local pid unit _
	read -r pid unit _ < <(mps_pid)
	sed -z -n 's/^CUDA_MPS_PIPE_DIRECTORY=//p' "/proc/$pid/environ" | tr -d '\0' | sed 's#/p$##'
}
# connects SOCKET prints connected, EACCES or the error. It leaves at once: who connects and says nothing is stopped.
connects='use Socket; socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die $!;
	print connect($s, sockaddr_un($ARGV[0])) ? "connected" : $!{EACCES} ? "EACCES" : "$!"'
want_connect() { # want_connect USER SOCKET connected|EACCES
	want "what $1 gets of $2" "$(as "$1" perl -e "$connects" "$2")" "$3"
}
reaches() { [ "$(as "$1" perl -e "$connects" "$2")" = "$3" ]; } # reaches USER SOCKET connected|EACCES

check_members() {
	local dir
	dir=$(directory)
	[ -S "$dir/t/control" ] || die "there is no socket at $dir/t/control"
	want "what the tenants' directory has" "$(ls -A "$dir/t")" control
	want_connect bob "$dir/t/control" connected
	want "what an ssh login of bob gets" "$(ssh_as bob "perl -e '$connects' $dir/t/control")" connected
}

# alice is in a tenant without a grant of MPS, and carol in none.
check_others() {
	local dir
	dir=$(directory)
	want_connect alice "$dir/t/control" EACCES
	want_connect carol "$dir/t/control" EACCES
	want_connect root "$dir/t/control" connected
}

# carol reaches it as long as a unit with her process is a lease: without waiting for the next observation of the node, which comes
# after 30 s.
check_user_of_a_lease() {
	local dir
	dir=$(directory)
	systemd-run --quiet --collect --unit lab-carol --uid carol sleep 3001
	gpushare lease attach -t speech --grant serve --unit lab-carol.service >/run/lab/attach 2>&1 || die "$(cat /run/lab/attach)"
	until_true 20 reaches carol "$dir/t/control" connected
	want_connect alice "$dir/t/control" EACCES
	systemctl stop lab-carol.service
	until_true 20 reaches carol "$dir/t/control" EACCES
	want_connect bob "$dir/t/control" connected
}

check_privileged_directory() {
	local dir user file
	dir=$(directory)
	want "the mode of the privileged directory" "$(stat -c '%U %a' "$dir/p")" "root 700"
	for user in bob alice carol; do
		for file in control control_privileged log; do
			want_connect "$user" "$dir/p/$file" EACCES
		done
		as "$user" ls "$dir/p" >/dev/null 2>&1 && die "$user lists the privileged directory"
		as "$user" ls "$dir/t" >/dev/null 2>&1 && die "$user lists the tenants' directory"
	done
	want_connect root "$dir/p/control_privileged" connected
}

# What is opened by hand is closed again.
closed() { [ "$(stat -c %a "$1")" = "$2" ]; } # closed PATH MODE
check_restored() {
	local dir tenants
	dir=$(directory)
	tenants=$(stat -c %a "$dir/t")
	chmod 0777 "$dir/t" "$dir/p"
	until_true 90 closed "$dir/t" "$tenants"
	until_true 90 closed "$dir/p" 700
	want_connect alice "$dir/t/control" EACCES
	want_connect bob "$dir/t/control" connected
	want_connect bob "$dir/p/control" EACCES
}
