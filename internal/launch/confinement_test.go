package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// confinedFlag makes the test binary a caller that confines itself.
const confinedFlag = "--confined"

// confinedCaller confines this process by its own calls, prints a line, and ends with its standard input.
func confinedCaller(kind, argument string) {
	var err error
	switch kind {
	case "seccomp":
		err = allowAll()
	case "chroot":
		err = errors.Join(unix.Chroot(argument), unix.Chdir("/"))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("confined")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// allowAll installs a seccomp filter in all threads. Root may do that without no_new_privs.
func allowAll() error {
	filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(
		unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)),
	)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// callerOf starts a caller and reads its credentials when it has printed its line.
func callerOf(t *testing.T, argv ...string) Credentials {
	t.Helper()
	cmd := exec.CommandContext(deadline(t), argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("needs %s: %v", argv[0], err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // Its input ended.
	})
	line := make([]byte, 256)
	if n, err := out.Read(line); err != nil || !strings.HasPrefix(string(line[:n]), "confined") {
		t.Skipf("needs a kernel and rights for %v: %s, %v", argv, line[:n], err)
	}
	// With --fork the caller is a child.
	pid := cmd.Process.Pid
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)); err == nil && len(strings.Fields(string(b))) == 1 &&
		strings.Contains(strings.Join(argv, " "), "--fork") {
		if pid, err = strconv.Atoi(strings.Fields(string(b))[0]); err != nil {
			t.Fatal(err)
		}
	}
	start, err := procfs.Start(pid)
	if err != nil {
		t.Fatal(err)
	}
	o, err := CredentialsOf(Process{pid, start}, os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	o.UID, o.GID = os.Getuid(), os.Getgid()
	return o
}

// A program is not started for a caller whose confinement it would not have, and the refusal names what would be lost.
func TestConfinedCallersAreRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to confine a process")
	}
	me, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	caller := []string{"sh", "-c", "echo confined; read x"}
	under := func(words ...string) []string { return append(words, caller...) }
	for name, tt := range map[string]struct {
		argv []string
		want string
	}{
		"mounts":               {under("unshare", "--mount"), "lost: mount namespace"},
		"network":              {under("unshare", "--net"), "lost: network namespace"},
		"IPC":                  {under("unshare", "--ipc"), "lost: IPC namespace"},
		"host name":            {under("unshare", "--uts"), "lost: UTS namespace"},
		"cgroups":              {under("unshare", "--cgroup"), "lost: cgroup namespace"},
		"time":                 {under("unshare", "--time", "--fork"), "lost: time namespace, time namespace of its children"},
		"pids of its children": {under("unshare", "--pid"), "lost: pid namespace of its children"},
		"pids":                 {under("unshare", "--pid", "--fork"), "lost: pid namespace, pid namespace of its children"},
		"users":                {under("unshare", "--user"), "lost: user namespace"},
		"users and network":    {under("unshare", "--user", "--map-root-user", "--net"), "lost: network namespace, user namespace"},
		"a seccomp filter":     {[]string{me, confinedFlag, "seccomp", ""}, "lost: seccomp filter"},
		"a root directory":     {[]string{me, confinedFlag, "chroot", t.TempDir()}, "lost: root directory"},
		"no new privileges":    {under("setpriv", "--no-new-privs"), "lost: no_new_privs, and a Landlock sandbox if it has one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := shellProgram(t, "echo ran")
			p.Credentials = callerOf(t, tt.argv...)
			k := supervisors(t)
			f, ok := errors.AsType[*Failure](begin(t, k, "a", p))
			if !ok || f.Code != ExitCannot || !strings.HasSuffix(f.Message, tt.want) || !strings.Contains(f.Hint, "without --detach") {
				t.Errorf("got %+v, want %q", f, tt.want)
			}
			if _, err := k.Result(deadline(t), "a"); err != nil { // Its supervisor writes until then.
				t.Error(err)
			}
			if got := output(t, k, "a", -1); got != "" {
				t.Errorf("it printed %q", got)
			}
		})
	}
}

// A program gets the caller's capability bounding set.
func TestBoundingSetIsPassedOn(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to change a bounding set")
	}
	p := shellProgram(t, "grep CapBnd /proc/self/status")
	p.Credentials = callerOf(t, "setpriv", "--bounding-set", "-sys_ptrace,-net_raw", "sh", "-c", "echo confined; read x")
	k := supervisors(t)
	if err := begin(t, k, "a", p); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Result(deadline(t), "a"); err != nil {
		t.Fatal(err)
	}
	self, err := confinementOf("self")
	if err != nil {
		t.Fatal(err)
	}
	want := self.Bounding &^ (1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_NET_RAW)
	if got := output(t, k, "a", -1); p.Credentials.Confinement.Bounding != want || got != fmt.Sprintf("CapBnd:\t%016x\n", want) {
		t.Errorf("the caller has %x, the program prints %q; want %x", p.Credentials.Confinement.Bounding, got, want)
	}
}

func TestLostConfinement(t *testing.T) {
	base := func() Confinement {
		return Confinement{Namespaces: map[string]string{"net": "net:[1]", "pid_for_children": "pid:[1]"}, Root: "8:1:2", Bounding: 0xff}
	}
	for name, tt := range map[string]struct {
		caller, self, first func(c *Confinement)
		want                string
	}{
		"the same": {},
		"the filter of a container": {
			caller: func(c *Confinement) { c.Filters = 1 }, self: func(c *Confinement) { c.Filters = 1 }, first: func(c *Confinement) { c.Filters = 1 },
		},
		"a filter more than the container":    {caller: func(c *Confinement) { c.Filters = 2 }, first: func(c *Confinement) { c.Filters = 1 }, want: "seccomp filter"},
		"a filter of the daemon alone":        {caller: func(c *Confinement) { c.Filters = 1 }, self: func(c *Confinement) { c.Filters = 1 }, want: "seccomp filter"},
		"a namespace that cannot be read":     {caller: func(c *Confinement) { delete(c.Namespaces, "pid_for_children") }, want: "pid namespace of its children"},
		"no_new_privs of the daemon":          {self: func(c *Confinement) { c.NoNewPrivs = true }},
		"a profile":                           {caller: func(c *Confinement) { c.Label = "sandbox (enforce)" }, self: func(c *Confinement) { c.Label = "unconfined" }, want: "security label sandbox (enforce)"},
		"the same profile":                    {caller: func(c *Confinement) { c.Label = "sandbox (enforce)" }, self: func(c *Confinement) { c.Label = "sandbox (enforce)" }},
		"no profile, next to that of another": {caller: func(c *Confinement) { c.Label = "unconfined" }, self: func(c *Confinement) { c.Label = "x (enforce)" }},
		"an unconfined type": {
			caller: func(c *Confinement) { c.Label = "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023" },
			self:   func(c *Confinement) { c.Label = "system_u:system_r:unconfined_service_t:s0" },
		},
		"a confined type": {
			caller: func(c *Confinement) { c.Label = "user_u:user_r:user_t:s0" },
			self:   func(c *Confinement) { c.Label = "system_u:system_r:unconfined_service_t:s0" },
			want:   "security label user_u:user_r:user_t:s0",
		},
		"more capabilities than the program":  {caller: func(c *Confinement) { c.Bounding = 0xfff }},
		"fewer capabilities than the program": {caller: func(c *Confinement) { c.Bounding = 0x7f }, want: "capability bounding set"},
	} {
		t.Run(name, func(t *testing.T) {
			caller, self, first := base(), base(), base()
			for change, c := range map[*func(*Confinement)]*Confinement{&tt.caller: &caller, &tt.self: &self, &tt.first: &first} {
				if *change != nil {
					(*change)(c)
				}
			}
			if got := strings.Join(caller.lost(&self, &first), ", "); got != tt.want {
				t.Errorf("lost: %q, want %q", got, tt.want)
			}
		})
	}
}

// The attributes are those of the process that connected, also when its pid is reused.
func TestCredentialsOfAnotherProcess(t *testing.T) {
	start, err := procfs.Start(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if o, err := CredentialsOf(Process{os.Getpid(), start + 1}, os.Getuid()); err == nil {
		t.Errorf("the attributes of another process were read: %+v", o)
	}
}
