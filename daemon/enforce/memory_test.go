package enforce

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// unusedPID is a pid that no process has. No test signals it.
const unusedPID = 1 << 30

// What happens to a grant above its limit, without signals.
func TestAboveTheLimit(t *testing.T) {
	t.Parallel()
	over := func(time.Duration) (uint64, error) { return 2 * limit, nil }
	for _, c := range []struct {
		name    string
		overuse string
		enforce api.OnOff
		use     func(at time.Duration) (uint64, error)
		noFreezer,
		unfreezable bool
		again   error // of the measurement before a stop
		until   time.Duration
		want    []string
		notices int    // lines to its user
		memory  uint64 // as it is reported; 0: not checked
		stage   string
		last    bool // the last known values are reported
	}{
		{
			name: "within", overuse: "kill", enforce: "on", use: func(time.Duration) (uint64, error) { return limit / 2, nil }, until: time.Minute,
			memory: limit / 2,
		},
		{
			name: "notify only reports", overuse: "notify", enforce: "on", use: over, until: time.Minute,
			want: []string{"1s memory.over"}, notices: 1, memory: 2 * limit, stage: "over",
		},
		{
			// It cannot be measured again, so that it still runs.
			name: "kill is the default", enforce: "on", use: over, again: errNoAnswer, until: 9 * time.Second,
			want: []string{"1s freeze", "1s memory.freeze", "1s memory.over", "3s memory.stop", "3s memory.thaw", "3s thaw"}, notices: 3, memory: 2 * limit, stage: "stopping",
		},
		{
			name: "close to the limit", overuse: "kill", enforce: "on", use: func(time.Duration) (uint64, error) { return limit / 100 * 95, nil }, until: time.Minute,
			want: []string{"1.26s memory.notice"}, notices: 1, memory: limit / 100 * 95, stage: "notice",
		},
		{
			name: "a node that only observes does nothing", overuse: "kill", enforce: "observe", use: over, until: time.Minute,
			want: []string{"1s memory.over"}, memory: 2 * limit, stage: "over",
		},
		{
			name: "frozen, and thawed after the longest time", overuse: "freeze", enforce: "on", use: over, until: 9 * time.Second,
			want: []string{"1s freeze", "1s memory.freeze", "1s memory.over", "6s memory.thaw", "6s thaw", "8s freeze", "8s memory.freeze", "9s thaw"}, notices: 2, memory: 2 * limit, stage: "frozen",
		},
		{
			name: "frozen, and thawed when it is below its limit", overuse: "freeze", enforce: "on", until: 20 * time.Second,
			use: func(at time.Duration) (uint64, error) {
				if at < 5*time.Second {
					return 2 * limit, nil
				}
				return limit / 2, nil
			},
			want: []string{"1s freeze", "1s memory.freeze", "1s memory.over", "5s memory.thaw", "5s thaw", "10s memory.clear"}, notices: 3, memory: limit / 2,
		},
		{
			name: "nothing freezes on this host", overuse: "freeze", enforce: "on", use: over, noFreezer: true, until: 9 * time.Second,
			want: []string{"1s memory.over"}, notices: 1, memory: 2 * limit, stage: "over",
		},
		{
			name: "it cannot be frozen", overuse: "freeze", enforce: "on", use: over, unfreezable: true, until: 9 * time.Second,
			want: []string{"1s memory.over"}, notices: 1, memory: 2 * limit, stage: "over",
		},
		{
			// The last known use keeps the warning: it is not zero, which would be "clear". It stops no lease.
			name: "a driver that stops answering stops no lease", overuse: "kill", enforce: "on", until: time.Minute,
			use: func(at time.Duration) (uint64, error) {
				if at < 2*time.Second {
					return 2 * limit, nil
				}
				return 0, errNoAnswer
			},
			want: []string{"1s freeze", "1s memory.freeze", "1s memory.over", "6s memory.thaw", "6s thaw"}, notices: 2, memory: 2 * limit, stage: "over", last: true,
		},
		{
			name: "and leaves none frozen", overuse: "freeze", enforce: "on", until: time.Minute,
			use: func(at time.Duration) (uint64, error) {
				if at < 2*time.Second {
					return 2 * limit, nil
				}
				return 0, errNoAnswer
			},
			want: []string{"1s freeze", "1s memory.freeze", "1s memory.over", "6s memory.thaw", "6s thaw"}, notices: 2, memory: 2 * limit, stage: "over", last: true,
		},
		{
			name: "a driver that never answered", overuse: "kill", enforce: "on", until: time.Minute,
			use: func(time.Duration) (uint64, error) { return 0, errNoAnswer },
		},
		{
			name: "a lease that cannot be measured again is not stopped", overuse: "kill", enforce: "on", use: over, again: errNoAnswer, until: 9 * time.Second,
			want: []string{"1s freeze", "1s memory.freeze", "1s memory.over", "3s memory.stop", "3s memory.thaw", "3s thaw"}, notices: 3, memory: 2 * limit, stage: "stopping",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, c.overuse)
				w.enforce(c.enforce, api.ModeExclusive)
				w.port.assign(unusedPID, w.lease)
				w.driver.sample = func() ([]gpu.Process, error) {
					use, err := c.use(time.Since(w.journal.start))
					if err != nil {
						return nil, err
					}
					return []gpu.Process{on(unusedPID, use), on(unusedPID, use)}, nil // In two of the driver's lists.
				}
				if c.again != nil {
					w.driver.again = func() ([]gpu.Process, error) { return nil, c.again }
				}
				if c.noFreezer {
					w.Freezer = nil
				}
				if c.unfreezable {
					w.port.freezeErr = errNoAnswer
				}
				w.begin(t)
				w.runUntil(c.until)
				sample := w.Samples.Lease(w.lease)
				w.end()
				if d := cmp.Diff(c.want, sorted(w.journal.read())); d != "" {
					t.Errorf("what was done (-want +got):\n%s", d)
				}
				l, ok := w.Table.Get(w.lease)
				if !ok || l.State != lease.Running {
					t.Fatalf("the lease is %s", l.State)
				}
				if notices := l.Notices[w.lines:]; len(notices) != c.notices {
					t.Errorf("its user gets %q, want %d lines", notices, c.notices)
				}
				if c.memory > 0 && sample.Memory != c.memory || sample.Stage != c.stage || sample.LastKnown.IsZero() == c.last {
					t.Errorf(
						"it is reported with %d bytes, %q, of %v; want %d, %q", sample.Memory, sample.Stage, sample.LastKnown, c.memory,
						c.stage,
					)
				}
			})
		})
	}
}

// A limit below what a lease uses counts at the next sample, also if the lease gets it after the sample that follows the new spec,
// the memory does not move, and a slow driver lists its processes twice a minute.
func TestLimitBelowUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, "notify")
		w.port.assign(unusedPID, w.lease)
		w.driver.sample = func() ([]gpu.Process, error) { return []gpu.Process{on(unusedPID, limit/2)}, nil }
		var spent time.Duration
		w.ReadingTime = func(gpu.UUID) time.Duration { spent += 10 * time.Millisecond; return spent }
		w.begin(t)
		w.runUntil(10*time.Second + 200*time.Millisecond)
		w.enforce("on", api.ModeExclusive)
		w.runUntil(11*time.Second + 500*time.Millisecond)
		lower := api.Bytes(limit / 4)
		v := viewOf("notify", &lower)
		v.Generation = 3
		w.Table.Update(v)
		w.runUntil(14 * time.Second)
		stage := w.Samples.Lease(w.lease).Stage
		w.end()
		if stage != "over" {
			t.Errorf("the stage is %q: %q", stage, w.journal.read())
		}
	})
}

// sorted sorts what was done at the same time, because another goroutine writes the events.
func sorted(lines []string) []string {
	for i := range lines {
		for j := i; j > 0; j-- {
			at, before := timeOf(lines[j]), timeOf(lines[j-1])
			if at < before || at == before && lines[j] < lines[j-1] {
				lines[j], lines[j-1] = lines[j-1], lines[j]
			}
		}
	}
	return lines
}

func timeOf(line string) time.Duration {
	at, _, _ := strings.Cut(line, " ")
	d, _ := time.ParseDuration(at) // The journal wrote a valid duration.
	return d
}

// A lease gets SIGTERM first and SIGKILL only after the grace period, and each only while it is measured above its limit.
func TestStopped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		below        func(at time.Duration) bool // whether it is measured below its limit before a signal
		until        time.Duration
		want         []string
		by           syscall.Signal // 0: it runs
		state        lease.State
	}{
		{
			name: "it exits after SIGTERM", script: endsOnTerm, until: 20 * time.Second,
			want: []string{"1s freeze", "1s memory.freeze", "1s memory.over", "3s SIGTERM", "3s memory.stop", "3s memory.thaw", "3s thaw", "8s memory.clear"}, by: syscall.SIGTERM, state: lease.Ending,
		},
		{
			name: "it ignores SIGTERM", script: ignoresTerm, until: 20 * time.Second, by: syscall.SIGKILL,
			// It is frozen before, so that none of its kernels runs when it is killed.
			want: []string{"1s freeze", "1s memory.freeze", "1s memory.over", "3s SIGTERM", "3s memory.stop", "3s memory.thaw", "3s thaw", "5s freeze", "5s memory.kill", "5.5s SIGKILL", "5.5s thaw"},
		},
		{
			name: "it is below its limit before SIGKILL", script: ignoresTerm, until: 20 * time.Second, by: syscall.SIGKILL,
			below: func(at time.Duration) bool { return at >= 4*time.Second && at < 7*time.Second },
			want:  []string{"1s freeze", "1s memory.freeze", "1s memory.over", "3s SIGTERM", "3s memory.stop", "3s memory.thaw", "3s thaw", "5s memory.kill", "7s freeze", "7.5s SIGKILL", "7.5s thaw"},
		},
		{
			name: "it is below its limit before SIGTERM", script: ignoresTerm, until: 20 * time.Second, by: syscall.SIGKILL,
			below: func(at time.Duration) bool { return at < 4*time.Second },
			want:  []string{"1s freeze", "1s memory.freeze", "1s memory.over", "3s memory.stop", "3s memory.thaw", "3s thaw", "4s SIGTERM", "6s freeze", "6s memory.kill", "6.5s SIGKILL", "6.5s thaw"},
		},
		{
			name: "it is below its limit each time", script: endsOnTerm, until: 9 * time.Second, state: lease.Running,
			below: func(time.Duration) bool { return true },
			want:  []string{"1s freeze", "1s memory.freeze", "1s memory.over", "3s memory.stop", "3s memory.thaw", "3s thaw"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := startScript(t, c.script)
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, "kill")
				w.port.assign(p.pid, w.lease)
				terminated := func() bool {
					l, _ := w.Table.Get(w.lease)
					return l.State == lease.Ending
				}
				w.driver.sample = func() ([]gpu.Process, error) {
					if c.script == endsOnTerm && terminated() {
						<-p.ended
						return nil, nil
					}
					return []gpu.Process{on(p.pid, 2*limit)}, nil
				}
				w.driver.again = func() ([]gpu.Process, error) {
					if c.below != nil && c.below(time.Since(w.journal.start)) {
						return []gpu.Process{on(p.pid, limit/2)}, nil
					}
					return w.driver.sample()
				}
				w.port.killed = func(ctx context.Context, id string) {
					p.kill()
					if err := w.Table.Ended(ctx, id, "it was killed"); err != nil {
						t.Error(err)
					}
				}
				w.begin(t)
				w.runUntil(c.until)
				w.end()
				if d := cmp.Diff(c.want, sorted(w.journal.read())); d != "" {
					t.Errorf("what was done (-want +got):\n%s", d)
				}
				if l, _ := w.Table.Get(w.lease); l.State != c.state {
					t.Errorf("the lease is %q, want %q", l.State, c.state)
				}
				switch {
				case c.by == 0 && !p.alive():
					t.Error("it was stopped")
				case c.by != 0 && p.endedBy() != c.by:
					t.Errorf("it ended by %v, want %v", p.endedBy(), c.by)
				}
			})
		})
	}
}

// Of a lease attached in place only the process that uses most is stopped. The lease is never frozen.
func TestAttachedInPlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		want         []string
		by           syscall.Signal
	}{
		{"it exits after SIGTERM", endsOnTerm, []string{"1s memory.over", "3s memory.stop", "9s memory.clear"}, syscall.SIGTERM},
		{"it ignores SIGTERM", ignoresTerm, []string{"1s memory.over", "3s memory.stop", "5s memory.kill", "11s memory.clear"}, syscall.SIGKILL},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			small, large := startScript(t, endsOnTerm), startScript(t, c.script)
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, "kill")
				if err := w.Table.Ended(t.Context(), w.lease, "another lease starts"); err != nil {
					t.Fatal(err)
				}
				k, err := w.Table.Submit(lease.Request{Tenant: "red", Member: []string{"red"}, Origin: lease.OriginAttached})
				if err != nil {
					t.Fatal(err)
				}
				l, _, err := w.Table.Start(t.Context(), k.ID(), lease.Process{PID: small.pid, Start: 1})
				if err != nil {
					t.Fatal(err)
				}
				w.port.assign(small.pid, l.ID)
				w.port.assign(large.pid, l.ID)
				w.driver.sample = func() ([]gpu.Process, error) {
					at := time.Since(w.journal.start)
					if at > 3*time.Second && c.by == syscall.SIGTERM || at > 5*time.Second {
						<-large.ended
						return []gpu.Process{on(small.pid, limit/10)}, nil
					}
					return []gpu.Process{on(small.pid, limit/10), on(large.pid, 2*limit)}, nil
				}
				w.begin(t)
				w.runUntil(20 * time.Second)
				w.end()
				if d := cmp.Diff(c.want, sorted(w.journal.read())); d != "" {
					t.Errorf("what was done (-want +got):\n%s", d)
				}
				if got := large.endedBy(); got != c.by {
					t.Errorf("it ended by %v, want %v", got, c.by)
				}
				if !small.alive() {
					t.Error("the other process was stopped too")
				}
				if l, _ := w.Table.Get(l.ID); l.State != lease.Running {
					t.Errorf("the lease is %q", l.State)
				}
			})
		})
	}
}

// A container is started again while the escalation waits for what got SIGTERM, or right after SIGKILL: its next process is judged for
// itself. It gets SIGTERM first, soon if it is above the limit, and nothing if it is not.
func TestRestartedWithinTheGrace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, first, second       string
		engine                    bool
		use                       uint64         // of the second process
		firstKilled, secondKilled time.Duration  // when they get SIGKILL, if they ignore SIGTERM
		by                        syscall.Signal // what the second process ends by; 0: it runs
		want                      []string
	}{
		{
			name: "a pod that ends on SIGTERM, and is above its limit again", engine: true, first: endsOnTerm, second: endsOnTerm, use: 2 * limit,
			want: []string{"1s memory.over", "3s memory.stop", "4s memory.stop", "9s memory.clear"}, by: syscall.SIGTERM,
		},
		{
			name: "and ignores SIGTERM then", engine: true, first: endsOnTerm, second: ignoresTerm, secondKilled: 6 * time.Second, use: 2 * limit,
			want: []string{"1s memory.over", "3s memory.stop", "4s memory.stop", "6s memory.kill", "12s memory.clear"}, by: syscall.SIGKILL,
		},
		{
			name: "it ignores SIGTERM each time", engine: true, first: ignoresTerm, second: ignoresTerm, firstKilled: 5 * time.Second, secondKilled: 7 * time.Second, use: 2 * limit,
			want: []string{"1s memory.over", "3s memory.stop", "5s memory.kill", "6s memory.stop", "7s memory.kill", "13s memory.clear"}, by: syscall.SIGKILL,
		},
		{
			name: "a pod within its limit the second time", engine: true, first: endsOnTerm, second: ignoresTerm, use: limit / 2,
			want: []string{"1s memory.over", "3s memory.stop", "8s memory.clear"},
		},
		{
			name: "a service that ends on SIGTERM, and is above its limit again", first: endsOnTerm, second: endsOnTerm, use: 2 * limit,
			want: []string{"1s memory.over", "3s memory.stop", "4s memory.stop", "9s memory.clear"}, by: syscall.SIGTERM,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			first, second := startScript(t, c.first), startScript(t, c.second)
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, "kill")
				if err := w.Table.Ended(t.Context(), w.lease, "another lease starts"); err != nil {
					t.Fatal(err)
				}
				r := lease.Request{Tenant: "red", Member: []string{"red"}, Origin: lease.OriginAttached}
				if c.engine {
					r.Admin, r.GPUs = true, []string{string(testGPU)}
					r.Engine = &lease.Engine{Key: "kubernetes:1", BindBy: time.Now().Add(time.Hour)}
				}
				k, err := w.Table.Submit(r)
				if err != nil {
					t.Fatal(err)
				}
				l, _, err := w.Table.Start(t.Context(), k.ID(), lease.Process{PID: first.pid, Start: 1})
				if err != nil {
					t.Fatal(err)
				}
				w.port.assign(first.pid, l.ID)
				w.port.assign(second.pid, l.ID)
				w.driver.sample = func() ([]gpu.Process, error) {
					at := time.Since(w.journal.start)
					switch {
					case c.first == endsOnTerm && !w.terminated(l.ID, first), c.first == ignoresTerm && at <= c.firstKilled:
						return []gpu.Process{on(first.pid, 2*limit)}, nil
					case c.by == syscall.SIGTERM && w.terminated(l.ID, second),
						c.by == syscall.SIGKILL && at > c.secondKilled && second.endsSoon():
						return nil, nil
					case !first.endsSoon():
						return []gpu.Process{on(first.pid, 2*limit)}, nil
					}
					return []gpu.Process{on(second.pid, c.use)}, nil
				}
				w.begin(t)
				w.runUntil(20 * time.Second)
				w.end()
				if d := cmp.Diff(c.want, sorted(w.journal.read())); d != "" {
					t.Fatalf("what was done (-want +got):\n%s", d)
				}
				switch {
				case c.by == 0 && !second.alive():
					t.Error("the process that follows was stopped")
				case c.by != 0 && second.endedBy() != c.by:
					t.Errorf("the process that follows ended by %v, want %v", second.endedBy(), c.by)
				}
			})
		})
	}
}

// terminated reports whether a process of a lease in place got SIGTERM, by what its users were informed of, and has ended if it ends on it.
func (w *fixture) terminated(id string, p *realProcess) bool {
	l, _ := w.Table.Get(id)
	return slices.ContainsFunc(l.Notices, func(line string) bool {
		return strings.Contains(line, fmt.Sprint(p.pid)) && strings.Contains(line, "SIGTERM")
	}) && p.endsSoon()
}
