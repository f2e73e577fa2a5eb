package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// joined is a spec with MPS on GPU 2 for two tenants.
const joined = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: mps}
tenants:
  - name: red
    grants:
      - {name: join, mps: {share: 30%, gpu_memory: 8GiB}}
  - name: blue
    grants:
      - {name: join, mps: {share: 30%, gpu_memory: 8GiB}}
`

// join starts a lease whose process is a client of MPS, and waits until the status lists it.
func join(t *testing.T, n *harness.Node, tenant string) (*harness.Job, string) {
	t.Helper()
	job, id := begin(t, n, tenant, "join", n.Burn("--hold")...)
	if err := job.AwaitLine(soon(t), "ready"); err != nil {
		t.Fatal(err)
	}
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "the client is not listed", func(s *api.Status) bool {
		for _, p := range s.GPUs[2].Processes {
			if p.Kind == "mps" && p.Lease == id {
				return true
			}
		}
		return false
	})
	return job, id
}

// A drained MPS takes no lease, also after the daemon was killed, and disturbs none that runs.
func TestDrainedMPSTakesNoLease(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, joined)
	job, id := join(t, n, "red")
	if r := n.CLI(soon(t), "mps", "drain", "2"); r.Code != 0 || !strings.Contains(r.Out, "is drained") || !strings.Contains(r.Out, id) {
		t.Fatalf("mps drain exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	for _, killed := range []bool{false, true} {
		if killed {
			n.KillDaemon()
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
		s := awaitStatus(t, n, "it is not drained", func(s *api.Status) bool { return s.GPUs[2].State == "drained" })
		if m := s.GPUs[2].MPS; m == nil || m.Drained == nil || m.Drained.By == "" || m.State != "running" {
			t.Errorf("killed %v: %+v", killed, m)
		}
		if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--grant", "join", "--", "true"); r.Code != 125 ||
			!strings.Contains(r.Err, "its MPS is drained") {
			t.Errorf("killed %v: a lease gets it: %d %s", killed, r.Code, r.Err)
		}
		if r := n.CLI(soon(t), "mps", "list"); !strings.Contains(r.Out, "drained by") {
			t.Errorf("killed %v: the list is %s", killed, r.Out)
		}
	}
	if r := n.CLI(soon(t), "mps", "resume", "2"); r.Code != 0 {
		t.Fatalf("mps resume exits with %d: %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--grant", "join", "--", "true"); r.Code != 0 {
		t.Errorf("after resume no lease gets it: %s", r.Err)
	}
	select {
	case <-job.Done():
		t.Errorf("the lease that ran ended: %s", job.Output())
	default:
	}
	// Of a GPU that leaves MPS mode the mark goes with it.
	if r := n.CLI(soon(t), "mps", "drain", "2"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	job.Kill()
	// A plan names the processes that the status shows: those of the driver's last list.
	awaitStatus(t, n, "the lease does not end", func(s *api.Status) bool { return len(s.Leases) == 0 && len(s.GPUs[2].Processes) == 0 })
	apply(t, n, "version: v1\nnode: {enforce: on}\n")
	apply(t, n, joined)
	if g := status(t, n).GPUs[2]; g.MPS == nil || g.MPS.Drained != nil {
		t.Errorf("after a spec without MPS it is %s: %+v", g.State, g.MPS)
	}
	if r := n.CLI(soon(t), "mps", "drain", "0"); r.Code == 0 || !strings.Contains(r.Err, "does not run MPS on GPU 0") {
		t.Errorf("a GPU without MPS is drained: %d %s", r.Code, r.Err)
	}
}

// A restart names the clients and needs --force for them. What is shown of MPS is as read back.
func TestMPSIsShownAndRestarted(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, joined)
	_, id := join(t, n, "red")
	before, err := n.Client().MPS(soon(t), "2")
	if err != nil || before.State != "running" || before.PID == 0 || before.Started == nil || len(before.Servers) != 1 {
		t.Fatalf("shown: %+v %v", before, err)
	}
	if len(before.ClientList) != 1 || before.ClientList[0].Lease != id || before.ClientList[0].Tenant != "red" {
		t.Errorf("its clients are %+v", before.ClientList)
	}
	for _, r := range before.Rules {
		if r.Enforced && !r.Advisory && strings.Contains(r.What, "time") {
			t.Errorf("%+v is only asked for by the environment", r)
		}
	}
	if r := n.CLI(soon(t), "mps", "log", "2", "--lines", "500"); r.Code != 0 || !strings.Contains(r.Out, "NEW SERVER") {
		t.Errorf("mps log exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "mps", "restart", "2"); r.Code != api.ExitConflict || !strings.Contains(r.Err, id) ||
		!strings.Contains(r.Err, "mps restart 2 --force") {
		t.Errorf("a restart with a client exits with %d: %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "mps", "restart", "2", "--check"); r.Code != 0 || !strings.Contains(r.Out, id) {
		t.Errorf("the check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if now, err := n.Client().MPS(soon(t), "2"); err != nil || now.PID != before.PID {
		t.Fatalf("it was restarted: %+v %v", now, err)
	}
	if r := n.CLI(soon(t), "mps", "restart", "2", "--force"); r.Code != 0 {
		t.Fatalf("mps restart --force exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	after, err := n.Client().MPS(soon(t), "2")
	if err != nil || after.PID == before.PID || after.State != "running" || after.Restarts != 1 || len(after.ClientList) != 0 {
		t.Errorf("after the restart: %+v %v", after, err)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--grant", "join", "--", "true"); r.Code != 0 {
		t.Errorf("after the restart no lease gets it: %s", r.Err)
	}
}

// A control daemon that was killed runs again within three seconds with its limits, and until then its GPU is not ok.
func TestKilledMPSRunsAgainSoon(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, joined)
	before := status(t, n).GPUs[2].MPS
	if before == nil || before.State != "running" {
		t.Fatalf("MPS is %+v", before)
	}
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	parts := []int{n.DaemonPID(), workerOf(t, n.DaemonPID())}
	late := -waited(parts)
	procfstest.AwaitEnd(t, before.PID)
	states := map[string]int{}
	awaitStatus(t, n, "MPS does not run again", func(s *api.Status) bool {
		g := &s.GPUs[2]
		states[g.State]++
		if g.State == "ok" && (g.MPS.State != "running" || g.MPS.PID == before.PID) {
			t.Fatalf("%s after the end of its control daemon the GPU is ok, with MPS %+v", time.Since(killed), g.MPS)
		}
		return g.State == "ok"
	})
	duration := time.Since(killed)
	// What had no processor on a busy host was late for that: the daemon, its worker, and the control daemon that it started.
	late += waited(append(parts, status(t, n).GPUs[2].MPS.PID))
	t.Logf("it runs again after %s, %s of it without a processor; the states were %v", duration, late, states)
	if duration -= max(0, late); duration > 3*time.Second {
		t.Errorf("it runs again after %s, without what it had no processor for, want 3s at most", duration)
	}
	if r := n.CLI(soon(t), "mps", "show", "2"); r.Code != 0 || !strings.Contains(r.Out, "default threads") {
		t.Errorf("mps show exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// A control daemon that ends again and again counts as failed, and is tried again only after minutes: 'gpu retry' starts it at once.
func TestRetryStartsAFailedMPSAtOnce(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, joined)
	const failures = 6 // in a row
	for last, i := 0, 0; i < failures; i++ {
		s := awaitStatus(t, n, "it is not started again", func(s *api.Status) bool {
			m := s.GPUs[2].MPS
			return m != nil && m.State == "running" && m.PID != last
		})
		last = s.GPUs[2].MPS.PID
		if err := syscall.Kill(last, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		procfstest.AwaitEnd(t, last)
	}
	s := awaitStatus(
		t, n, "it does not count as failed",
		func(s *api.Status) bool { return s.GPUs[2].MPS != nil && s.GPUs[2].MPS.State == "failed" },
	)
	m, err := n.Client().MPS(soon(t), "2")
	if err != nil {
		t.Fatal(err)
	}
	if g := s.GPUs[2]; g.State != "mps-down" || !strings.Contains(g.MPS.Reason, "6 failures in a row") || m.Retry == nil ||
		time.Until(*m.Retry) < 2*time.Minute {
		t.Fatalf("GPU 2 is %s, with MPS %+v, %+v", g.State, g.MPS, m)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "join", "--", "true"); r.Code != 125 {
		t.Errorf("a lease gets a GPU whose MPS has failed: %d %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "gpu", "retry", "2"); r.Code != 0 {
		t.Fatalf("gpu retry exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	// The command has waited for it.
	if g := status(t, n).GPUs[2]; g.State != "ok" || g.MPS == nil || g.MPS.State != "running" {
		t.Fatalf("after gpu retry GPU 2 is %s: %s, with MPS %+v", g.State, g.Reason, g.MPS)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "join", "--", "true"); r.Code != 0 {
		t.Errorf("after gpu retry no lease gets it: %d %s", r.Code, r.Err)
	}
	if hasCondition(status(t, n), "mps", "") {
		t.Errorf("a condition is left: %+v", status(t, n).Node.Conditions)
	}
}

// A control daemon that was killed while a client runs leaves its server. A condition has the command that helps, and the command
// helps; gpu retry refuses and names the client.
func TestOrphanedMPSServer(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, joined)
	job, _ := join(t, n, "red")
	m := status(t, n).GPUs[2].MPS
	if err := syscall.Kill(m.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	const command = "mps restart 2 --force"
	awaitStatus(t, n, "no condition has the command", func(s *api.Status) bool {
		for _, c := range s.Node.Conditions {
			if c.Kind == "mps" && strings.Contains(c.Hint, command) {
				return s.GPUs[2].State == "mps-down"
			}
		}
		return false
	})
	if r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--grant", "join", "--", "true"); r.Code != 125 {
		t.Errorf("a lease gets a GPU whose MPS is down: %d %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "gpu", "retry", "2"); r.Code != api.ExitConflict || !strings.Contains(r.Err, "pid ") {
		t.Errorf("gpu retry exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	select {
	case <-job.Done():
		t.Fatalf("the client was ended: %s", job.Output())
	default:
	}
	if r := n.CLI(soon(t), strings.Fields(command)...); r.Code != 0 {
		t.Fatalf("%s exits with %d: %s%s", command, r.Code, r.Out, r.Err)
	}
	s := awaitStatus(t, n, "MPS does not run", func(s *api.Status) bool { return s.GPUs[2].MPS != nil && s.GPUs[2].MPS.State == "running" })
	for _, c := range s.Node.Conditions {
		if c.Kind == "mps" {
			t.Errorf("there is still a condition: %s", c.Message)
		}
	}
	if left := serversOf(t, n.Root()); left != 0 {
		t.Errorf("%d servers are left", left)
	}
}

// serversOf counts the MPS servers of a node.
func serversOf(t *testing.T, root string) (count int) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // It has ended, or belongs to another user.
		}
		if strings.HasPrefix(string(b), filepath.Join(root, "usr/bin/nvidia-cuda-mps-server")) {
			count++
		}
	}
	return count
}

// A fatal fault of a client is found when the driver reports it. Its lease and those of the others keep the XID, also when they have
// ended, and the GPU takes leases again.
func TestAFaultOfMPSIsKeptWithItsLeases(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, joined)
	culprit, red := join(t, n, "red")
	victim, blue := join(t, n, "blue")
	m, err := n.Client().MPS(soon(t), "2")
	if err != nil || len(m.ClientList) != 2 {
		t.Fatalf("the clients are %+v, %v", m, err)
	}
	pid := ""
	for _, c := range m.ClientList {
		if c.Lease == red {
			pid = strconv.Itoa(c.PID)
		}
	}
	if err := n.Ctl(soon(t), nil, "xid", "2", "43"); err != nil { // One that ends no context by itself.
		t.Fatal(err)
	}
	if out := mpsQuery(t, n, "p", "gpusim_fault "+pid); out != "0" {
		t.Fatalf("no fault: %s", out)
	}
	awaitEnd(t, culprit)
	awaitEnd(t, victim)
	for id, text := range map[string]string{red: "pid " + pid + " had a fatal fault under MPS of GPU 2 (XID 43)", blue: "lost its GPU context: a client of the MPS of GPU 2 had a fatal fault (XID 43)"} {
		err := harness.Await(soon(t), 20*time.Millisecond, "the lease does not keep the fault", func() (bool, error) {
			r := n.CLI(soon(t), "lease", "show", id, "--json")
			return strings.Contains(r.Out, text), nil
		})
		if err != nil {
			t.Errorf("%s: %v: %s", id, err, n.CLI(soon(t), "lease", "show", id).Out)
		}
	}
	awaitStatus(t, n, "the GPU does not serve again", func(s *api.Status) bool { return s.GPUs[2].State == "ok" })
	join(t, n, "blue")
}
