// Package machine boots virtual machines for tests: an image of Debian with its own kernel and its own systemd, disks, and the programs
// of this tree for it. It asserts nothing.
//
// It never uses KVM, so that it runs everywhere. What a machine does after its boot is on its payload: guest/main.sh.
package machine

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Hardware is what one boot of a machine has.
type Hardware struct {
	Image   Image
	Disk    string // NewDisk
	Payload string // Payload
	Port    string // a unix socket: /dev/virtio-ports/gpushare.lab in the guest
	Console string // a file
	Journal string // a file: /dev/virtio-ports/gpushare.journal in the guest
	Memory  int    // MiB
	Kernel  string // more of the kernel's command line
	Network bool   // to the loopback addresses of this host, as 10.0.2.2; the guest is 10.0.2.15
}

// Command is the machine. It ends with the context and with the thread that starts it, so that none outlives a killed test.
func Command(ctx context.Context, h Hardware) *exec.Cmd {
	args := []string{
		"-accel", "tcg,thread=multi,tb-size=512",
		// An old CPU model: newer features are emulated slowly (a quarter of all time). Without cx16, for qemu 7.2:
		// that instruction spoils the flags, with several processors at least, and the kernel dies in its allocator in one
		// boot of three.
		"-cpu", "Nehalem,-cx16",
		// One CPU. With two on separate host threads, one sometimes hits a breakpoint that the other has already removed while it
		// patches kernel code, and the guest crashes (qemu 7.2). Two on one host thread alternate every 0.1 s, in which every
		// message between processes waits.
		"-smp", "1", "-m", strconv.Itoa(h.Memory), "-M", "q35", "-nodefaults", "-nographic", "-no-reboot",
		"-kernel", h.Image.kernel, "-initrd", h.Image.initrd,
		"-append", strings.Join(append(kernelArguments(), h.Kernel), " "),
		"-drive", "file=" + h.Disk + ",if=none,id=root,cache=unsafe", "-device", "virtio-blk-pci,drive=root",
		"-drive", "file=" + h.Payload + ",format=raw,if=none,id=payload,readonly=on",
		"-device", "virtio-blk-pci,drive=payload,serial=lab",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=port,path=" + h.Port, "-device", "virtserialport,chardev=port,name=gpushare.lab",
		"-chardev", "file,id=journal,path=" + h.Journal, "-device", "virtserialport,chardev=journal,name=gpushare.journal",
		"-serial", "file:" + h.Console,
	}
	if h.Network {
		args = append(args, "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func kernelArguments() []string {
	return []string{
		"console=ttyS0 quiet systemd.mask=serial-getty@ttyS0.service panic=-1 mitigations=off cryptomgr.notests",
		// An emulator without CPU time for a moment looks like a board with a broken timer.
		"no_timer_check tsc=reliable",
		// No high-resolution timers: every Go program requests 20 µs, and an emulated clock with that resolution takes a third of
		// the CPU.
		"highres=off",
		// Hardening and accounting that cost time at each page, call or switch. No check needs them.
		"preempt=none init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off psi=0 noautogroup nowatchdog",
		// The removal of a cgroup waits for an RCU grace period, which otherwise waits for the next tick.
		"rcupdate.rcu_expedited=1",
		// The emulator translates a program again at each new address. At a fixed address a process starts in 40 % of the time.
		// No check is about addresses.
		"norandmaps transparent_hugepage=never",
		// The modules of Debian without bpf, which takes seconds.
		"lsm=landlock,lockdown,yama,apparmor,integrity apparmor=1 security=apparmor",
	}
}
