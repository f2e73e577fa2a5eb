package control

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/test/enumeration"
)

// tenantsControl sends commands through the socket that tenants have.
func (f *fixture) tenantsControl() client {
	return client{program: f.Control, pipeDir: f.layout(deviceA).tenant(), greeted: true}
}

// joined is the limits with which a program has joined MPS, "limit=… share=…".
func (f *fixture) joined(t *testing.T, p *program) string {
	t.Helper()
	_, limits, ok := strings.Cut(f.node.Contexts()[p.cmd.Process.Pid], "limit=")
	if !ok {
		t.Fatalf("pid %d has the context %q", p.cmd.Process.Pid, f.node.Contexts()[p.cmd.Process.Pid])
	}
	return "limit=" + limits
}

func (f *fixture) end(t *testing.T, p *program) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.ends(t, 143, "stopped by SIGTERM")
}

// Changed limits reach new clients without a restart of the control daemon, and nothing disturbs those that run. A memory limit that
// the server refuses while it has clients is reported, and is in force after they have ended.
func TestLimitsChangeLive(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	h := &Handler{Supervisor: r.Supervisor, Driver: &fakeModes{mode: gpu.ComputeDefault}}
	before := mps.Settings{GPU: gpuA, Threads: 40, Memory: 2 << 30}
	r.start(t, before)
	pid := r.running(t).PID
	first := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	if got := r.joined(t, first); got != fmt.Sprintf("limit=%d share=40", 2<<30) {
		t.Fatalf("the first client has %s", got)
	}

	after := mps.Settings{GPU: gpuA, Threads: 60, Memory: 3 << 30}
	s := onlyStep(t, h, &after)
	if want := "threads of MPS clients 40% → 60%: new clients"; !strings.Contains(s.Text, want) {
		t.Errorf("the plan says %q, want %q in it", s.Text, want)
	}
	do(t, h, s)
	st := r.running(t)
	if st.PID != pid || !strings.Contains(st.Pending, `reads back as "2G", it should be "3G"`) {
		t.Errorf("after the change: %+v", st)
	}
	second := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	if got := r.joined(t, second); got != fmt.Sprintf("limit=%d share=60", 2<<30) {
		t.Errorf("a client after the change has %s", got)
	}
	r.end(t, first)
	r.end(t, second)
	r.awaitClients(t, 0)
	if st := r.observe(t); !st.Drift {
		t.Fatalf("without clients: %+v, want the limit to be set", st)
	}
	do(t, h, onlyStep(t, h, &after))
	if st := r.running(t); st.PID != pid || st.Pending != "" {
		t.Errorf("after the clients: %+v", st)
	}
	third := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	if got := r.joined(t, third); got != fmt.Sprintf("limit=%d share=60", 3<<30) {
		t.Errorf("a client after them has %s", got)
	}

	// Back to no limits.
	none := mps.Settings{GPU: gpuA}
	do(t, h, onlyStep(t, h, &none))
	fourth := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	if got := r.joined(t, fourth); got != fmt.Sprintf("limit=%d", 3<<30) {
		t.Errorf("without limits, a client of the same server has %s", got)
	}
	if err := h.Undo(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if st := r.running(t); st.PID != pid || *st.Settings != before {
		t.Errorf("after the undo: %+v", st)
	}
}

// awaitClients waits until the servers have so many clients: a server notices the end of one a moment later.
func (f *fixture) awaitClients(t *testing.T, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d clients", n), func() bool { return len(f.observe(t).Clients) == n })
}

// A tenant that removes the variables of its lease gets what the defaults allow, and no more.
func TestDefaultsWithoutTheEnvironment(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			r := newFixtureOf(t, driver)
			r.start(t, mps.Settings{GPU: gpuA, Threads: 40, Memory: 512 << 20})
			env := slices.DeleteFunc(r.environment(t, mps.Limits{Threads: 20, Memory: 256 << 20}), func(kv string) bool {
				return !strings.HasPrefix(kv, "CUDA_MPS_PIPE_DIRECTORY=")
			})
			p := r.burn(t, env, "--memory", "500MiB", "--hold")
			if got := r.joined(t, p); got != fmt.Sprintf("limit=%d share=40", 512<<20) {
				t.Errorf("without the variables: %s", got)
			}
			more := append(env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M")
			p = r.burn(t, more, "--hold")
			if got := r.joined(t, p); got != fmt.Sprintf("limit=%d share=40", 512<<20) {
				t.Errorf("asking for more: %s", got)
			}
		})
	}
}

// What tenants can change through their socket is noticed at the next observation, on a version where they can, and set again.
func TestTenantsChangeLimits(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			r := newFixtureOf(t, driver)
			for _, test := range []struct{ name, command, want string }{
				{"more threads", "set_default_active_thread_percentage 90", "default thread percentage is 90, it should be 30"},
				{"fewer threads", "set_default_active_thread_percentage 1", "default thread percentage is 1, it should be 30"},
				{"more memory", "set_default_device_pinned_mem_limit 0 4G", `default memory limit reads back as "4G", it should be "2G"`},
				{"no memory limit", "set_default_device_pinned_mem_limit 0 0", `default memory limit reads back as "", it should be "2G"`},
			} {
				t.Run(test.name, func(t *testing.T) {
					r.notices(t, mps.Settings{GPU: gpuA, Threads: 30, Memory: 2 << 30}, driver, test.command, test.want)
				})
			}
			for _, test := range []struct{ name, command, want string }{
				{"threads of other tenants, where there is no limit", "set_default_active_thread_percentage 1", "default thread percentage is 1, it should be 100"},
				{"memory of other tenants, where there is no limit", "set_default_device_pinned_mem_limit 0 1M", `default memory limit reads back as "1M", it should be ""`},
			} {
				t.Run(test.name, func(t *testing.T) { r.notices(t, mps.Settings{GPU: gpuA}, driver, test.command, test.want) })
			}
		})
	}
}

// notices sends a tenant's command, and fails the test unless the next observation, at the same time, has the difference, and unless
// the correction removes it without a restart.
func (f *fixture) notices(t *testing.T, set mps.Settings, driver, command, want string) {
	t.Helper()
	if st := f.observe(t); st == nil {
		f.start(t, set)
	} else {
		f.correct(t, set)
	}
	st := f.running(t)
	if st.AnyoneSets != (driver < "580") {
		t.Fatalf("any tenant may change limits: %v", st.AnyoneSets)
	}
	if _, err := f.tenantsControl().query(t.Context(), command); err != nil {
		t.Fatal(err)
	}
	tenantsCan := driver < "550"
	switch seen := f.Observe(t.Context(), deviceA); {
	case !tenantsCan && seen.Drift:
		t.Errorf("%q of a tenant had an effect: %s", command, seen.Reason)
	case tenantsCan && (!seen.Drift || !strings.Contains(seen.Reason, want)):
		t.Errorf("after %q: %+v, want %q", command, seen, want)
	}
	f.correct(t, set)
	if again := f.running(t); again.PID != st.PID {
		t.Error("the correction restarted it")
	}
}

// The limits of a server that runs are compared too: up to 555 any tenant may change them, also those of a server that has just
// started.
func TestLimitsOfAServer(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			r := newFixtureOf(t, driver)
			set := mps.Settings{GPU: gpuA, Threads: 30}
			r.start(t, set)
			r.running(t)
			r.burn(t, r.environment(t, mps.Limits{}), "--hold")
			st := r.Observe(t.Context(), deviceA)
			if len(st.Servers) != 1 || len(st.Clients) != 1 {
				t.Fatalf("a server that has just started is not seen: %+v", st)
			}
			command := fmt.Sprintf("set_active_thread_percentage %d 90", st.Servers[0])
			c := r.tenantsControl()
			if driver > "580" {
				c.pipeDir = r.pipe()
				r.clock.pass(limitsInterval)
			}
			if _, err := c.query(t.Context(), command); err != nil {
				t.Fatal(err)
			}
			seen := r.Observe(t.Context(), deviceA)
			if !seen.Drift ||
				!strings.Contains(seen.Reason, fmt.Sprintf("the thread percentage of server %d is 90, it should be 30", st.Servers[0])) {
				t.Errorf("observed %+v", seen)
			}
			r.correct(t, set)
			p := r.burn(t, r.environment(t, mps.Limits{}), "--hold")
			if got := r.joined(t, p); !strings.HasSuffix(got, "share=30") {
				t.Errorf("a client after the correction: %s", got)
			}
		})
	}
}

// maxLogOfADay is how many bytes a day of observations writes to the log at most.
const maxLogOfADay = 1e6

// Observations cost few bytes of the daemon's log: a greeting each, and the lists at intervals, with what the search for processes without
// MPS asks while leases have processes on the GPU. The day begins when a client has just been connected, which is compared with more
// questions than what follows.
func TestLogOfObservations(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	const (
		apart        = 30 * time.Second
		observations = limitsInterval / apart // from one reading of the limits to the next
		intervals    = int64(24 * time.Hour / limitsInterval)
		perSearch    = 20 // observations: bypass.clientsFor
	)
	for _, driver := range onEveryBranch(t) {
		for _, client := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a client: %t", driver, client), func(t *testing.T) {
				r := newFixtureOf(t, driver)
				r.start(t, mps.Settings{GPU: gpuA, Threads: 30, Memory: 2 << 30})
				if client {
					r.burn(t, r.environment(t, mps.Limits{}), "--hold")
				}
				r.running(t)
				log := r.logPath()
				interval := func() int64 {
					before := size(t, log)
					for i := range observations {
						r.clock.pass(apart)
						if client && i%perSearch == 0 {
							if found, err := r.Clients(t.Context(), deviceA); err != nil || len(found) != 1 {
								t.Fatalf("the clients are %v: %v", found, err)
							}
						}
						if st := r.Observe(t.Context(), deviceA); !st.Healthy() {
							t.Fatalf("observed %+v", st)
						}
					}
					return size(t, log) - before
				}
				first, next := interval(), interval()
				day := first + (intervals-1)*next
				t.Logf("%d bytes a day: %d in its first 15 minutes, %d in those that follow", day, first, next)
				if day > maxLogOfADay {
					t.Errorf("a day of observations writes %d bytes to the log, want at most %.0f", day, maxLogOfADay)
				}
			})
		}
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// await polls until ok, which has no event.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(deadline)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-poll.C:
		case <-limit:
			t.Fatalf("waited %s for %s", deadline, what)
		}
	}
}
