// Package vm is the lab: it boots Debian 12 and Debian 13 in emulated machines with their own kernel and their own
// systemd, and runs checks inside that no container or fake can run, such as a reboot. The checks are the shell functions
// under guest/; each of them becomes a subtest: TestDebian12/first/detach/isolation.
//
// It is not part of make test, because it needs root, qemu and a mirror of Debian: the machines live behind the build
// tag vm (make test-vm). Only the reading of the guest's report is here without it. It never uses KVM, so that it runs
// wherever a program runs; so its times are those of an emulator and no figure of the product.
//
// # How a phase is added
//
// A phase is one file, guest/phases/NAME.sh, and a word in story (vm_test.go), at its place in a boot: the phases of a
// boot run one after the other in one guest, and the disk goes on into the next boot. What is expensive is the boot (half
// a minute), so a phase joins one. Its first lines say what it is and list its checks in order; each check NAME is a
// function check_NAME, which fails by failing (set -e, with the line in the report) or by saying why:
//
//	# What a tenant cannot do to another.
//	# checks: no_kill no_freeze
//
//	. /opt/lab/guest/product.sh
//
//	check_no_kill() {
//		start_job bob speech dev --memory 1GiB --kernel 10ms --queue 10 --seconds 3000
//		login alice "kill -KILL $pid" && die "alice killed a process of bob's"
//		want "the process" "$(ps -o user= -p "$pid")" bob
//	}
//
// Every check is a shell of its own: what one leaves to the next goes through files in $state (kept over the reboot) or
// /run/lab. A check that cannot run says skip WHY, which make test-vm tells and CI takes for a failure. A file that a phase
// needs lies beside it, under guest/. guest/lib.sh has what all use: die, want, note, skip, until_true (every wait has a
// deadline), open_in CGROUP NODE (through, denied), start_lease (a lease made by hand), login and ssh_as; guest/product.sh
// has what needs the product: status, field JQ, start_job USER TENANT GRANT BURN_OPTION…, truth (what the virtual GPUs
// know). The phase named install installs it and applies guest/node/spec.yaml; phases after it find vision (alice)
// and speech (bob) with living jobs (job vision dev, job vision train, job speech serve), and leave them living.
//
// People come in as they do on a real host, through PAM and logind:
//
//	login alice 'COMMAND'     runuser -l: a session, its scope under user-2001.slice, user@2001.service
//	ssh_as alice 'COMMAND'    sshd with its key: the same, as a remote session
//	as alice COMMAND...       only the credentials: no PAM, no session, the cgroup of the check
//
// alice, bob and carol (2001 to 2003) have ssh keys and no password. The guests hold systemd, D-Bus, libpam-systemd and
// dbus-user-session (without them the escapes would fail for the wrong reason), openssh, cron, podman with crun, bpftool,
// strace, gojq and iproute2, and no polkit. Opening a node of a driver that is not there would call modprobe each time:
// kernel.modprobe is empty. A package more is a line in image.sh: the image is built once for each version of it.
//
// # How it is run
//
// make test-vm runs all. To work on one phase, name those that it builds upon as well:
//
//	VM_PHASES='install detach' go test -tags vm -count=1 -v -run TestDebian13 ./test/vm
//
// Consoles and journals stay in build/vm/logs.
//
// # Where the time goes
//
// An emulated processor starts a program in some 16 ms and does everything thirty times slower, so what a check costs is the
// programs that it starts: fields are read by one gojq and not by three, and a wait polls without a process (nap). After each
// phase the report says what the processor was used for since the boot, and which programs that ended in that phase cost most
// (guest/spent.pl).
package vm
