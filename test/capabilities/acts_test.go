package capabilities

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/internal/kernel/descent"
	"github.com/gpushare/gpushare/internal/kernel/exits"
	"github.com/gpushare/gpushare/internal/kernel/opener"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/terminal"
)

// other is the uid of a tenant.
const other = 61234

// act is something that the daemon does and an ordinary process may not.
type act struct {
	name  string
	needs func(k kernel) []string // the capabilities of the unit without which it fails

	prepare func(t *testing.T) string // with all capabilities; what it returns is the argument of do
	do      func(on string) error     // by a process with some capabilities
}

// kernel is the version of the running one.
type kernel struct{ major, minor int }

func (k kernel) before(major, minor int) bool {
	return k.major < major || k.major == major && k.minor < minor
}

func always(names ...string) func(kernel) []string {
	return func(kernel) []string { return names }
}

// acts are all that need a capability. The table in docs/security.md has the kernel's check of each.
func acts() []act {
	return []act{
		{"replace the device program of a cgroup", func(k kernel) []string {
			if k.before(6, 9) {
				return []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN"}
			}
			return []string{"CAP_SYS_ADMIN"}
		}, cgroupWithRules, replaceRules},
		{"record the processes of leases", always("CAP_SYS_ADMIN"), nothing, recordProcesses},
		{"query which user opened a file", always("CAP_SYS_ADMIN"), nothing, queryOpeners},
		{"hear of the ends of processes", always("CAP_NET_ADMIN"), nothing, hearOfEnds},
		{"signal a process of a tenant", always("CAP_KILL"), tenantProcess, signalProcess},
		{"read which files a process of a tenant has open", always("CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"), tenantProcess, readOpenFiles},
		{"end a connection at the MPS control daemon's end", always("CAP_SYS_PTRACE"), rootProcess, takeDescriptor},
		{"notify a user in the terminal", always("CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"), tenantTerminal, notifyTerminal},
		{"return a process to a cgroup of its user", always("CAP_DAC_OVERRIDE"), tenantCgroup, returnProcess},
	}
}

func nothing(*testing.T) string { return "" }

// newCgroup is removed at the end of the test.
func newCgroup(t *testing.T) string {
	t.Helper()
	h, err := cgroup.FindHierarchy()
	if err != nil || !h.Writable() {
		t.Skipf("needs a writable cgroup v2 hierarchy: %v", err)
	}
	cg := fmt.Sprintf("/gpushare-capabilities-%d-%s", os.Getpid(), filepath.Base(t.TempDir()))
	cg = strings.ToLower(cg) + strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := os.Mkdir(h.Dir(cg), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Kill(context.Background(), cg); err != nil {
			t.Error(err)
		}
		if err := h.Remove(cg); err != nil {
			t.Error(err)
		}
	})
	return h.Dir(cg)
}

func cgroupWithRules(t *testing.T) string {
	dir := newCgroup(t)
	if err := device.Probe(dir); err != nil {
		t.Skipf("needs device programs: %v", err)
	}
	if _, err := device.SetRules(dir, []device.Rule{{Type: 'c', Major: 195, Minor: 1, Access: "rw"}}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func replaceRules(dir string) error {
	rules, ok, err := device.Rules(dir)
	if err != nil || !ok || len(rules) != 1 {
		return fmt.Errorf("the rules are %v, %v: %w", rules, ok, err)
	}
	// Another list than the one before, so that it is written.
	wrote, err := device.SetRules(dir, []device.Rule{{Type: 'c', Major: 195, Minor: rules[0].Minor + 1, Access: "rw"}})
	if err == nil && !wrote {
		return errors.New("nothing was written")
	}
	return err
}

func recordProcesses(string) error {
	r, err := descent.Open("/nonexistent", "gpushare-capabilities")
	if err != nil {
		return err
	}
	return r.Close()
}

func queryOpeners(string) error {
	_, err := new(opener.Reader).Read(context.Background(), nil)
	return err
}

func hearOfEnds(string) error {
	l, err := exits.Listen()
	if err != nil {
		return err
	}
	return l.Close()
}

// start starts a process that waits, and returns its pid.
func start(t *testing.T, attr *syscall.SysProcAttr, files ...*os.File) string {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr, cmd.ExtraFiles = attr, files
	cmd.SysProcAttr.Pdeathsig = 0
	if attr.Setctty {
		cmd.Stdin = files[0]
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // Wait reaps it.
		_ = cmd.Wait()
	})
	return strconv.Itoa(cmd.Process.Pid)
}

func tenant() *syscall.Credential { return &syscall.Credential{Uid: other, Gid: other} }

func tenantProcess(t *testing.T) string {
	f, err := os.Create(filepath.Join(t.TempDir(), "open"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return start(t, &syscall.SysProcAttr{Credential: tenant()}, f)
}

func rootProcess(t *testing.T) string { return start(t, &syscall.SysProcAttr{}) }

// process opens a process by its pid as text.
func process(on string) (*procfs.Pidfd, int, error) {
	pid, err := strconv.Atoi(on)
	if err != nil {
		return nil, 0, err
	}
	began, err := procfs.Start(pid)
	if err != nil {
		return nil, 0, err
	}
	p, err := procfs.OpenPidfd(pid, began)
	return p, pid, err
}

// signalProcess sends the null signal, which has the check of all others.
func signalProcess(on string) error {
	p, _, err := process(on)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Signal(context.Background(), 0)
}

func readOpenFiles(on string) error {
	pid, err := strconv.Atoi(on)
	if err != nil {
		return err
	}
	found := 0
	unread, err := procfs.WalkOpenFiles(context.Background(), []int{pid}, func(procfs.OpenFile) { found++ })
	if err == nil && (unread > 0 || found == 0) {
		err = fmt.Errorf("%d files were found, and %d are unreadable", found, unread)
	}
	return err
}

// takeDescriptor duplicates a descriptor of a process of root that has all capabilities, as that daemon has.
func takeDescriptor(on string) error {
	p, _, err := process(on)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Pass(func(pidfd int) error {
		fd, err := unix.PidfdGetfd(pidfd, 0, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

// tenantTerminal is a process of a tenant in a terminal, as a login makes it.
func tenantTerminal(t *testing.T) string {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs pseudo terminals: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("/dev/pts/%d", n)
	slave, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	if err := os.Chmod(name, 0o620); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(name, other, 5); err != nil { // the group tty
		t.Fatal(err)
	}
	return start(t, &syscall.SysProcAttr{Credential: tenant(), Setsid: true, Setctty: true, Ctty: 0}, slave)
}

func notifyTerminal(on string) error {
	pid, err := strconv.Atoi(on)
	if err != nil {
		return err
	}
	if n := terminal.Notify([]int{pid}, other, "the lease ends"); n != 1 {
		return fmt.Errorf("%d terminals were notified", n)
	}
	return nil
}

// tenantCgroup is a cgroup that a user manager has, and a process to put there.
func tenantCgroup(t *testing.T) string {
	dir := newCgroup(t)
	for _, path := range []string{dir, filepath.Join(dir, "cgroup.procs")} {
		if err := os.Chown(path, other, other); err != nil {
			t.Fatal(err)
		}
	}
	return dir + " " + start(t, &syscall.SysProcAttr{Credential: tenant()})
}

func returnProcess(on string) error {
	dir, pid, _ := strings.Cut(on, " ")
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0)
}
