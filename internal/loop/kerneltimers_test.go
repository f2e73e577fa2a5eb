package loop

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// startKernelTimers uses the timers of the kernel until the test ends, as UseKernelTimers does until the program ends.
func startKernelTimers(t testing.TB) *kernelTimers {
	t.Helper()
	k, err := newKernelTimers()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.run()
	}()
	kernelClock.Store(k)
	t.Cleanup(func() {
		kernelClock.Store(nil)
		if err := k.file.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return k
}

// await receives the value of a timer.
func await(t *testing.T, what string, timer *Timer) {
	t.Helper()
	select {
	case <-timer.C():
	case <-time.After(30 * time.Second):
		t.Fatalf("%s does not end", what)
	}
}

func TestKernelTimersEndInTheirOrder(t *testing.T) {
	k, began := startKernelTimers(t), time.Now()
	last := NewTimer(60 * time.Millisecond)
	first := NewTimer(20 * time.Millisecond) // It ends before the one that the kernel's timer is set for.
	due := NewTimer(-time.Second)
	await(t, "a timer that is due", due)
	await(t, "the first", first)
	if d := time.Since(began); d < 20*time.Millisecond {
		t.Errorf("the first ends after %v", d)
	}
	await(t, "the last", last)
	if d := time.Since(began); d < 60*time.Millisecond {
		t.Errorf("the last ends after %v", d)
	}
	if last.place != 0 || len(k.heap) != 0 {
		t.Errorf("%d timers are left", len(k.heap))
	}
}

// A timer that is stopped or set again gives nothing of what it was before, also if it had ended and that was not read.
func TestKernelTimersForgetTheirPast(t *testing.T) {
	k := startKernelTimers(t)
	other, timer := NewTimer(time.Hour), NewTimer(0)
	await(t, "another timer", NewTimer(5*time.Millisecond)) // Timer has ended.
	timer.Reset(time.Hour)
	select {
	case <-timer.C():
		t.Fatal("a timer that was set again has a value of before")
	default:
	}
	timer.Reset(time.Millisecond)
	await(t, "a timer that was set again for an earlier time", timer)
	timer.Reset(0)
	await(t, "another timer", NewTimer(5*time.Millisecond))
	timer.Stop()
	other.Stop()
	other.Stop()
	select {
	case <-timer.C():
		t.Error("a stopped timer has a value")
	default:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.heap) != 0 {
		t.Errorf("%d timers are left", len(k.heap))
	}
}

// Loops that wait with Sleep and Every use them, and those that end together are one wake-up.
func TestLoopsShareTheKernelTimer(t *testing.T) {
	k := startKernelTimers(t)
	const loops = 50
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	var g Group
	g.Begin(ctx)
	at := time.Now().Add(50 * time.Millisecond)
	ended := make(chan bool, loops)
	for range loops {
		g.Go(func() { ended <- Pause(ctx, time.Until(at)) })
	}
	for range loops {
		if !<-ended {
			t.Fatal("the wait of a loop did not end")
		}
	}
	g.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	// Each computes its own time until then, so that some are a moment later.
	if k.wakes == 0 || k.wakes > loops {
		t.Errorf("the kernel's timer ended %d times for %d loops", k.wakes, loops)
	}
	if len(k.heap) != 0 {
		t.Errorf("%d timers are left", len(k.heap))
	}
}

// Timers of one moment are one wake-up, however many.
func TestTimersOfOneMomentAreOneWakeUp(t *testing.T) {
	k, err := newKernelTimers()
	if err != nil {
		t.Fatal(err)
	}
	defer k.file.Close()
	var timers []*Timer
	for range 100 {
		timers = append(timers, &Timer{kernel: k, c: make(chan time.Time, 1)})
		k.set(timers[len(timers)-1], time.Hour)
	}
	armed := k.armed
	k.end(time.Now().Add(2 * time.Hour))
	for i, timer := range timers {
		select {
		case <-timer.C():
		default:
			t.Errorf("timer %d has not ended", i)
		}
	}
	if armed.IsZero() || !k.armed.IsZero() || k.wakes != 1 {
		t.Errorf("the kernel's timer was set for %v, then for %v; %d wake-ups", armed, k.armed, k.wakes)
	}
}

// One wait is one wake-up of one thread: with a timer of the runtime it is three.
func TestAWaitIsOneWakeUp(t *testing.T) {
	startKernelTimers(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // As in the daemon.
	const waits, tries = 50, 10
	least := 0
	for i := range tries { // A collection of garbage wakes threads too.
		before := switches(t)
		for range waits {
			Pause(t.Context(), 2300*time.Microsecond)
		}
		if n := switches(t) - before; i == 0 || n < least {
			least = n
		}
		if least <= waits*3/2 {
			return
		}
	}
	t.Errorf("threads were switched to %d times in %d waits", least, waits)
}

// BenchmarkWait shows how often threads of the process are switched to for one wait.
func BenchmarkWait(b *testing.B) {
	for _, kernel := range []bool{false, true} {
		b.Run(map[bool]string{false: "timers of the runtime", true: "timers of the kernel"}[kernel], func(b *testing.B) {
			if kernel {
				startKernelTimers(b)
			}
			before := switches(b)
			for range b.N {
				Pause(b.Context(), 5300*time.Microsecond)
			}
			b.ReportMetric(float64(switches(b)-before)/float64(b.N), "switches/op")
		})
	}
}

// switches is how often threads of this process waited.
func switches(b testing.TB) (n int) {
	b.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		b.Fatal(err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // The thread has ended.
		}
		for line := range strings.Lines(string(text)) {
			if kind, v, ok := strings.Cut(line, "_ctxt_switches:"); ok && kind[0] != 'n' { // The others lost their core.
				count, err := strconv.Atoi(strings.TrimSpace(v))
				if err != nil {
					b.Fatal(err)
				}
				n += count
			}
		}
	}
	return n
}
