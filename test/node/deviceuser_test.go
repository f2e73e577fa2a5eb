package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/silentfs"
)

// monitor is a process that only has a device node open, like a GPU monitor.
type monitor struct {
	pid   string // as messages name it
	ended chan struct{}
	kill  func()
	start uint64
	n     int
}

// openable replaces a device node of a virtual node by a file: no driver is behind the node, and open(2) fails. The daemon knows the nodes
// of a virtual node by their files.
func openable(t *testing.T, path string) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode()&os.ModeDevice == 0 {
		return
	}
	file := path + ".new"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(file, st.Mode().Perm()), os.Rename(file, path)); err != nil {
		t.Fatal(err)
	}
}

// watch starts a monitor of a device node of the virtual node, which opens it itself.
func watch(t *testing.T, n *harness.Node, uid uint32, node string) *monitor {
	t.Helper()
	path := filepath.Join(n.Root(), "dev", node)
	openable(t, path)
	m := monitorOf(t, exec.Command("sh", "-c", `exec 9<"$0" && exec sleep 120`, path), uid)
	if err := harness.Await(soon(t), time.Millisecond, "it has not opened "+node, func() (bool, error) {
		st, err := procfs.Read(m.n)
		return st.Name == "sleep", err
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// names starts a process that has the path of a device node as a descriptor.
func names(t *testing.T, n *harness.Node, uid uint32, node string) *monitor {
	t.Helper()
	path := filepath.Join(n.Root(), "dev", node)
	openable(t, path)
	f, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("sleep", "120")
	cmd.ExtraFiles = []*os.File{f}
	return monitorOf(t, cmd, uid)
}

func monitorOf(t *testing.T, cmd *exec.Cmd, uid uint32) *monitor {
	t.Helper()
	cmd.Dir = "/"
	if int(uid) != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := &monitor{pid: fmt.Sprintf("pid %d (sleep", cmd.Process.Pid), ended: make(chan struct{}), n: cmd.Process.Pid}
	go func() {
		_ = cmd.Wait() // It is stopped.
		close(m.ended)
	}()
	m.kill = func() {
		_ = cmd.Process.Kill() // It may have ended.
		<-m.ended
	}
	t.Cleanup(m.kill)
	var err error
	if m.start, err = procfs.Start(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *monitor) alive() bool {
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// patient starts a node with long driver timeouts.
func patient(t *testing.T, file string) *harness.Node {
	t.Helper()
	n := newNode(t, file)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

// gpusOf is the state of every GPU of the virtual node, with the number of its resets.
func gpusOf(t *testing.T, n *harness.Node) []struct {
	gpu.Snapshot
	Resets int `json:"resets"`
} {
	t.Helper()
	var v struct {
		GPUs []struct {
			gpu.Snapshot
			Resets int `json:"resets"`
		} `json:"gpus"`
	}
	if err := n.Ctl(soon(t), &v, "status"); err != nil {
		t.Fatal(err)
	}
	return v.GPUs
}

// A process that only has a device open blocks a reset and is named with its unit, although the driver does not list it.
// --force stops a process of a user gracefully, and no process of the system.
func TestMonitorsBlockAReset(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := patient(t, quick)
	apply(t, n, shared)
	_, id := begin(t, n, "red", "cut", n.Burn("--memory", "1GiB", "--hold")...)
	was := truth(t, n)
	spec := replaced(t, shared, "{select: {index: 3}, mode: exclusive}", "{select: {index: 3}, mode: mig, mig: {layout: [3g.20gb]}}")
	spec = strings.ReplaceAll(spec, "      - {name: whole, exclusive: 1}\n", "")

	system := watch(t, n, 0, "nvidia3")
	named := "node.quiesce"
	if h, err := cgroup.FindHierarchy(); err == nil && h.Writable() {
		unit := "/exporter-of-" + n.Subtree() + ".service"
		if err := os.Mkdir(h.Dir(unit), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := h.Remove(unit); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(system.kill)
		if err := h.Place(cgroup.Process{PID: system.n, Start: system.start}, unit); err != nil {
			t.Fatal(err)
		}
		named = unit[1:] + ", for "
	}
	for _, args := range [][]string{{"--allow-reset"}, {"--allow-reset", "--force"}} {
		r := n.CLIIn(soon(t), spec, append([]string{"apply", "-f", "-"}, args...)...)
		if r.Code != api.ExitInfeasible || !strings.Contains(r.Err, system.pid) || !strings.Contains(r.Err, named) {
			t.Errorf("over a service of the system apply %v exits with %d: %s%s", args, r.Code, r.Out, r.Err)
		}
	}
	if !system.alive() || truth(t, n) != was {
		t.Errorf("it was stopped, or the node changed: %s", truth(t, n))
	}
	if strings.HasSuffix(named, ", for ") { // Without a service manager the unit cannot be stopped.
		quiesced := replaced(t, spec, "enforce: on", "enforce: on, quiesce: ["+strings.TrimSuffix(named, ", for ")+"]")
		r := n.CLIIn(soon(t), quiesced, "apply", "-f", "-", "--allow-reset", "--force")
		if r.Code != api.ExitInfeasible || !strings.Contains(r.Err, "stopping units needs systemd") {
			t.Errorf("with its unit in node.quiesce apply exits with %d: %s%s", r.Code, r.Out, r.Err)
		}
	}
	system.kill()

	user := watch(t, n, 65534, "nvidia3")
	r := n.CLIIn(soon(t), spec, "apply", "-f", "-", "--allow-reset")
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, user.pid) || !strings.Contains(r.Err, "--force") {
		t.Errorf("over a user's monitor apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	r = n.CLIIn(soon(t), spec, "apply", "-f", "-", "--allow-reset", "--force", "--check")
	if r.Code != 0 || !strings.Contains(r.Out, "stop "+user.pid) || !strings.Contains(r.Out+r.Err, "NVLink joins it with no other GPU") ||
		!strings.Contains(r.Out+r.Err, "fabric manager") {
		t.Errorf("--check --force exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLIIn(
		soon(t), spec, "apply", "-f", "-", "--force",
	); r.Code != api.ExitNeedsPermission || !strings.Contains(r.Err, "--allow-reset") ||
		!strings.Contains(r.Err, "fabric manager") {
		t.Errorf("without --allow-reset apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if !user.alive() {
		t.Fatal("a check or a refusal stopped a process")
	}
	before := gpusOf(t, n)
	r = n.CLIIn(soon(t), spec, "apply", "-f", "-", "--allow-reset", "--force")
	if r.Code != 0 || user.alive() {
		t.Fatalf("by force apply exits with %d, and it runs: %v: %s%s\n%s", r.Code, user.alive(), r.Out, r.Err, daemonLog(n))
	}
	after := gpusOf(t, n)
	for i := range after {
		if reset := after[i].Resets != before[i].Resets; reset != (i == 3) {
			t.Errorf("GPU %d was reset: %v", i, reset)
		}
	}
	s := awaitChange(t, n)
	if leaseByID(s, id) == nil || onGPU(truth(t, n), 0) != onGPU(was, 0) || !after[3].MIG.Current {
		t.Errorf("the neighbour's lease is %v, the node has %s", leaseByID(s, id), truth(t, n))
	}
	explained(t, s, "after a reset")
}

// capabilityOf is the capability node of an instance of GPU 0.
func capabilityOf(t *testing.T, n *harness.Node, profile string) string {
	t.Helper()
	var gi uint32
	for _, in := range status(t, n).GPUs[0].MIG.Instances {
		if in.Profile == profile {
			gi = in.ID
		}
	}
	minors, err := os.ReadFile(filepath.Join(n.Root(), "proc/driver/nvidia-caps/mig-minors"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(minors), fmt.Sprintf("gpu0/gi%d/access ", gi))
	minor, _, _ := strings.Cut(rest, "\n")
	if !ok {
		t.Fatalf("instance %d has no capability in\n%s", gi, minors)
	}
	return "nvidia-caps/nvidia-cap" + strings.TrimSpace(minor)
}

// An instance is in use while a process has its capability node open, although the process uses no memory and is in no list.
func TestOpenInstanceIsInUse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	t.Parallel()
	n := patient(t, quick)
	apply(t, n, shared)
	m := watch(t, n, 65534, capabilityOf(t, n, "3g.20gb"))
	other := replaced(t, shared, "layout: [3g.20gb, 1g.5gb]", "layout: [7g.40gb]")
	other = replaced(t, other, "mig: 3g.20gb}", "mig: 7g.40gb}")
	r := n.CLIIn(soon(t), other, "apply", "-f", "-")
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, m.pid) {
		t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	// Other instances of the GPU may change.
	another := replaced(t, shared, "layout: [3g.20gb, 1g.5gb]", "layout: [3g.20gb, 2g.10gb]")
	if r := n.CLIIn(soon(t), another, "apply", "-f", "-"); r.Code != 0 || !m.alive() {
		t.Errorf("a change of another instance exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLIIn(soon(t), other, "apply", "-f", "-", "--force"); r.Code != 0 || m.alive() {
		t.Errorf("by force apply exits with %d, and it runs: %v: %s%s", r.Code, m.alive(), r.Out, r.Err)
	}
	explained(t, awaitChange(t, n), "after force")
}

// A file on a file system that never answers, with a name like a device node, delays no apply. On the virtual node device
// nodes are known by their file: a link to one elsewhere is found nevertheless.
func TestAFileSystemThatNeverAnswersDelaysNoApply(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	t.Parallel()
	n := patient(t, quick)
	apply(t, n, shared)
	dir := t.TempDir()
	fs, err := silentfs.Mount(dir, "nvidia3", 0)
	if err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
	f, err := fs.Open()
	if err != nil {
		t.Fatal(err, fs.Close())
	}
	cmd := exec.Command("sleep", "120")
	cmd.ExtraFiles, cmd.Dir = []*os.File{f}, "/"
	if err := cmd.Start(); err != nil {
		t.Fatal(err, fs.Close())
	}
	f.Close()
	t.Cleanup(func() {
		if err := errors.Join(fs.Close(), cmd.Process.Kill()); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // It was killed.
	})
	fs.Silence()

	openable(t, filepath.Join(n.Root(), "dev/nvidia3"))
	link := filepath.Join(n.Root(), "harmless.txt")
	if err := os.Link(filepath.Join(n.Root(), "dev/nvidia3"), link); err != nil {
		t.Fatal(err)
	}
	m := watch(t, n, 65534, "../harmless.txt")
	spec := replaced(t, shared, "{select: {index: 3}, mode: exclusive}", "{select: {index: 3}, mode: mig, mig: {layout: [3g.20gb]}}")
	spec = strings.ReplaceAll(spec, "      - {name: whole, exclusive: 1}\n", "")
	began := time.Now()
	r := n.CLIIn(soon(t), spec, "apply", "-f", "-", "--allow-reset")
	if r.Code != api.ExitConflict || !strings.Contains(r.Err, m.pid) {
		t.Errorf("over a process that has the GPU open under another name apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	m.kill()
	if r := n.CLIIn(soon(t), spec, "apply", "-f", "-", "--allow-reset"); r.Code != 0 {
		t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	t.Logf("both took %v", time.Since(began).Round(time.Millisecond))
}
