package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/scenarios"
)

// busyPID is the pid that keeps an instance busy. No real process has it.
const busyPID = 1 << 22

// scenario is one change of a node, as it is carried out here.
type scenario struct {
	scenarios.Scenario
	victim *victim // the process in use, where the change may stop it
}

func allScenarios() []scenario {
	var out []scenario
	for _, s := range scenarios.All() {
		out = append(out, scenario{Scenario: s})
	}
	return out
}

// play carries a scenario out in a bubble of its own.
func (s *scenario) play(t *testing.T, f func(*testing.T, *scenario)) {
	t.Helper()
	own := *s
	if s.Force {
		own.victim = newVictim(t)
		defer own.victim.end()
	}
	synctest.Test(t, func(t *testing.T) { f(t, &own) })
}

// victim is a real process. The test waits for it outside of the bubble, whose time would not advance meanwhile.
type victim struct {
	pid   int
	start uint64
	done  chan struct{}
	kill  func()
}

// starting is locked while a process is started: until its program runs it has copies of all open files of the tests, also
// of the locks of their state directories.
var starting sync.RWMutex

// awaitStarts returns when no process has a copy of the files that were closed before.
func awaitStarts() {
	starting.RLock()
	defer starting.RUnlock()
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	return newProcess(t, false)
}

// newProcess starts a victim, or with kept a process that nothing stops.
func newProcess(t *testing.T, kept bool) *victim {
	t.Helper()
	if kept && os.Geteuid() != 0 {
		t.Skip("a process of root needs root")
	}
	cmd := exec.Command("sh", "-c", "echo; exec sleep 3600")
	cmd.Dir = "/"
	if os.Geteuid() == 0 && !kept { // A process of root is never stopped, not even with force.
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	starting.Lock()
	defer starting.Unlock()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, unread := out.Read(make([]byte, 1))
	v := &victim{pid: cmd.Process.Pid, done: make(chan struct{})}
	v.kill = func() { _ = cmd.Process.Kill() } // It may have ended.
	go func() {
		_ = cmd.Wait() // It is stopped.
		close(v.done)
	}()
	if v.start, err = procfs.Start(v.pid); err != nil || unread != nil {
		v.end()
		t.Fatalf("it does not run: %v, %v", err, unread)
	}
	return v
}

func (v *victim) alive() bool { return procfs.Alive(v.pid, v.start) }

func (v *victim) end() {
	v.kill()
	<-v.done
}

// staged is a scenario with its node before the change.
type staged struct {
	*virtual
	*scenario
	before   []string // layouts
	foreign  []string // instances of others on GPU 0, by name
	instance uint32   // of the busy one, its id
	refused  bool     // the request was refused
	answered bool     // it was answered at all
}

// stage makes the node as the scenario begins.
func (s *scenario) stage(t *testing.T, latency map[string]time.Duration) *staged {
	t.Helper()
	cfg := virtualConfig(t, nil, s.Boards...)
	if s.Driver != "" {
		cfg.DriverVersion = s.Driver
	}
	w := newVirtualOf(t, cfg)
	w.startDaemon()
	if _, op, refusal := w.apply(s.SpecFrom(), ""); refusal != nil || op != nil && op.State != "done" {
		t.Fatalf("cannot prepare the scenario: %v, %+v\n%s", refusal, op, w.log)
	}
	own := *s // The process may exit; other runs of the scenario have their own.
	out := &staged{virtual: w, scenario: &own}
	if s.Foreign != "" {
		other := w.node.Driver(77)
		created := false
		g := w.truth()[0]
		for _, p := range g.Model.GPUProfiles().GI {
			for _, at := range p.Placements {
				if p.Name == s.Foreign && !created {
					_, err := other.CreateInstance(t.Context(), w.ids[0], gpu.NewInstance{ProfileID: p.ID, Placement: at})
					created = err == nil
				}
			}
		}
		_ = other.Close()
		if !created {
			t.Fatal("there is no capacity for a foreign instance")
		}
		out.foreign = []string{s.Foreign}
	}
	if s.Busy != "" {
		g := w.truth()[0]
		for _, in := range g.Instances {
			if len(in.Compute) == 1 && new(g.Model.GPUProfiles()).GIName(in.ProfileID) == s.Busy {
				out.instance = in.ID
				pid := busyPID
				if s.victim != nil {
					pid = s.victim.pid
				}
				c, err := w.node.OpenContext(gpusim.ContextSpec{PID: pid, Device: string(in.Compute[0].UUID)})
				if err != nil {
					t.Fatal(err)
				}
				if s.victim != nil {
					w.closeContext = sync.OnceFunc(c.Close)
					w.clientExited = func() bool { return !s.victim.alive() }
				}
				break
			}
		}
		if out.instance == 0 {
			t.Fatalf("there is no %s to use", s.Busy)
		}
	}
	for i := range s.Boards {
		out.before = append(out.before, w.layoutOf(i))
	}
	for pattern, d := range latency {
		if err := w.node.SetLatency(pattern, d); err != nil {
			t.Fatal(err)
		}
	}
	w.port.mu.Lock()
	w.port.allowedLimits = map[string]bool{}
	for _, gib := range []int{scenarios.MemoryFrom, scenarios.MemoryTo} {
		w.port.allowedLimits[fmt.Sprintf(`{"CPUQuota":null,"CPUWeight":null,"CPUs":"","MemoryMax":%d,"MemoryHigh":null,"SwapMax":null,"TasksMax":null,"IOWeight":null}`, gib<<30)] = true
	}
	w.port.mu.Unlock()
	return out
}

// start starts the change of the scenario, and does not wait for its end.
func (s *staged) start() {
	s.Helper()
	if s.Boots {
		if s.Reloads {
			s.reload()
		} else {
			s.reboot()
		}
		s.converger.Pass(s.tasks.Context())
		s.answered = true
		return
	}
	refusal := s.do("PUT", "/v1/spec"+s.Query(), s.SpecTo(), nil)
	s.answered, s.refused = true, refusal != nil
}
