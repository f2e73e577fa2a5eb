// Package vm is the lab: it boots Debian 12 and Debian 13 in emulated machines with their own kernel and their own
// systemd, and runs checks inside that no container or fake can run, such as a reboot. The checks are the shell functions
// under guest/; each of them becomes a subtest: TestDebian12/first/detach/isolation.
//
// It is not part of make test, because it needs root, qemu and a mirror of Debian: the machines need the build tag vm
// (make test-vm). Only the parser of the guest's report is built without it. It never uses KVM, so that it runs everywhere;
// its times are those of an emulator and no figures of the product.
//
// # How a phase is added
//
// A phase is one file, guest/phases/NAME.sh, and an entry in boots (phases.go), at its place in a boot: the phases of a
// boot run one after the other in one guest, and the disk is kept for the next boot. A boot takes half a minute, so a phase
// is added to an existing one. Its first lines describe it and list its checks in order; each check NAME is a function
// check_NAME, which fails on the first failing command (set -e, with the line in the report) or with die WHY:
//
//	# What a tenant cannot do to another.
//	# checks: no_kill no_freeze
//
//	. /opt/lab/guest/product.sh
//
//	check_no_kill() {
//		start_job bob speech dev --memory 1GiB --kernel 10ms --queue 10 --seconds 3000
//		login alice "kill -KILL $pid" && die "alice killed a process of bob"
//		want "the process" "$(ps -o user= -p "$pid")" bob
//	}
//
// Every check runs in its own shell: data for the next goes through files in $state (kept over the reboot) or /run/lab. A
// check that cannot run calls skip WHY, which make test-vm reports and CI counts as a failure. Files that a phase needs are
// under guest/. guest/lib.sh has the common functions: die, want, note, skip, until_true (every wait has a
// deadline), open_in CGROUP NODE (through, denied), start_lease (a lease made by hand), login and ssh_as; guest/product.sh
// has those that need the product: status, field JQ, start_job USER TENANT GRANT BURN_OPTION…, truth (the state of the
// virtual GPUs). The phase named install installs its package and applies guest/node/spec.yaml; phases after it find vision (alice)
// and speech (bob) with running jobs (job vision dev, job vision train, job speech serve), and leave them running.
//
// The phases named documents and ansible are each alone in the boot of a new host. The first installs the package as docs/install.md says,
// and walks through the README and the pages. A page with commands is one of its checks (test/docs: TestEveryBlockIsRun).
//
// Users log in as on a real host, through PAM and logind:
//
//	login alice 'COMMAND'     runuser -l: a session, its scope under user-2001.slice, user@2001.service
//	ssh_as alice 'COMMAND'    sshd with its key: the same, as a remote session
//	as alice COMMAND...       only the credentials: no PAM, no session, the cgroup of the check
//
// alice, bob and carol (2001 to 2003) have ssh keys and no password. The guests have systemd, D-Bus, libpam-systemd and
// dbus-user-session (without them the escapes would fail for the wrong reason), openssh, cron, podman with crun, bpftool,
// strace, gojq and iproute2, and no polkit. An open of a node without a driver would call modprobe each time, so
// kernel.modprobe is empty. Packages are listed in image.sh: the image is built once for each version of it.
//
// # How it is run
//
// make test-vm runs all phases, and make test-vm-images builds what they boot. To run one phase, name also those that it builds upon:
//
//	VM_PHASES='install detach' go test -tags vm -count=1 -v -run TestDebian13 ./test/vm
//
// Consoles and journals stay in build/vm/logs.
//
// # CPU time
//
// An emulated processor starts a program in some 16 ms and does everything thirty times slower, so the cost of a check is
// the number of programs that it starts: one gojq reads several fields, and a wait polls without a process (nap). After each
// phase the report has the CPU time since the boot, and the programs of that phase with the most CPU time (guest/spent.pl).
package vm
