package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/test/enumeration"
)

// TestDeadline counts by hand: between two counts the process ran for the time of the timer, and was stopped for more.
func TestDeadline(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	for _, tt := range []struct {
		name  string
		limit time.Duration
		stops map[int]time.Duration // before which count, for how long
		want  time.Duration         // that the process ran
	}{
		{"never stopped", 2 * s, nil, 2 * s},
		{"no multiple of the step", 2*s + 10*ms, nil, 2*s + 10*ms},
		{"shorter than a step", 100 * ms, nil, 100 * ms},
		{"stopped at the beginning", 2 * s, map[int]time.Duration{0: 5 * s}, 2 * s},
		{"stopped at the end", 2 * s, map[int]time.Duration{7: time.Hour}, 2*s + deadlineGrace},
		{"stopped twice at the end: the grace is given once", 2 * s, map[int]time.Duration{7: 5 * s, 9: 5 * s}, 2*s + deadlineGrace},
		{"stopped each time", 2 * s, map[int]time.Duration{0: s, 1: s, 2: s, 3: s, 4: s, 5: s, 6: s, 7: s, 8: s, 9: s}, 2*s + deadlineStep},
		{"a short one", 100 * ms, map[int]time.Duration{0: s}, 100*ms + deadlineGrace},
		{"a timer that is a little late counts in full", 2 * s, map[int]time.Duration{3: deadlineLate}, 2*s - deadlineLate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Now()
			d, ran := deadline{left: tt.limit, last: now}, time.Duration(0)
			for i, over := 0, false; !over; i++ {
				if i > 20 {
					t.Fatalf("not over after %v", ran)
				}
				ran += d.next()
				now = now.Add(d.next() + tt.stops[i])
				over = d.count(now)
			}
			if ran != tt.want {
				t.Errorf("over after %v, want %v", ran, tt.want)
			}
		})
	}
}

// A bounded context ends as one of context.WithTimeout does.
func TestBoundedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := within(t.Context(), 1100*time.Millisecond)
		defer cancel()
		child, stop := context.WithCancel(ctx)
		defer stop()
		time.Sleep(time.Second)
		if left := ctx.left(); left != 100*time.Millisecond || ctx.Err() != nil {
			t.Errorf("after 1 s: %v left, %v", left, ctx.Err())
		}
		<-child.Done()
		if d := time.Since(began); d != 1100*time.Millisecond || !errors.Is(ctx.Err(), context.DeadlineExceeded) ||
			!errors.Is(context.Cause(child), context.DeadlineExceeded) {
			t.Errorf("it ended after %v with %v", d, ctx.Err())
		}
		cancelled, cancel := within(t.Context(), time.Hour)
		cancel()
		if err := cancelled.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled one: %v", err)
		}
	})
}

// clientEnv makes the test binary a client whose worker reads the memory of a GPU when the named pipe in it is closed.
const clientEnv = "GPUSHARE_TEST_CLIENT"

// stoppedLimit is the deadline of the client's reading.
const stoppedLimit = time.Second

// clientMain reads the memory once, and prints the pid of its worker before it, and the result after it with how long it and its worker
// have waited for a processor.
func clientMain(pipe string) int {
	exe, err := os.Executable()
	if err != nil {
		return 1
	}
	c, err := New(Options{
		Command: []string{exe}, Env: []string{workerEnv + "=pipe:" + pipe}, RunDir: filepath.Dir(pipe), Launcher: Exec{Stderr: os.Stderr},
		Deadlines: Deadlines{Read: stoppedLimit},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := c.Node(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	worker := c.Status().PID
	fmt.Println(worker)
	waited := func() time.Duration { return procfstest.Waited(os.Getpid()) + procfstest.Waited(worker) }
	before := waited()
	_, err = c.Memory(ctx, gpuA)
	fmt.Println(waited() - before)
	fmt.Printf("timeout=%v unresponsive=%d starts=%d\n", errors.Is(err, gpu.ErrTimeout), len(c.Status().Unresponsive), c.Stats().Starts)
	if err := c.Close(); err != nil {
		return 1
	}
	return 0
}

// openPipe blocks until the other end of a named pipe is closed.
func openPipe(path string) {
	if f, err := os.Open(path); err == nil {
		_, _ = io.Copy(io.Discard, f) // nothing is written to it
		f.Close()
	}
}

// stoppedCase is how a client is stopped.
type stoppedCase struct {
	name         string
	late, worker bool // stopped shortly before the deadline; the worker is stopped too
	hang         bool
	want         string
}

// TestStoppedClient stops a client with SIGSTOP for longer than the deadline of the call in flight. The time in which it was
// stopped does not count, also where its worker was stopped with it, and a call that hangs is still found.
func TestStoppedClient(t *testing.T) {
	enumeration.Long(t)
	const ok, hung = "timeout=false unresponsive=0 starts=1", "timeout=true unresponsive=1 starts=1"
	for _, tt := range []stoppedCase{
		{name: "the worker answers meanwhile", want: ok},
		{name: "the worker answers meanwhile, shortly before the deadline", late: true, want: ok},
		{name: "the worker is stopped too", worker: true, want: ok},
		{name: "the worker is stopped too, shortly before the deadline", late: true, worker: true, want: ok},
		{name: "the call hangs", worker: true, hang: true, want: hung},
		{name: "the call hangs, stopped shortly before the deadline", late: true, hang: true, want: hung},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// The time in which other programs have the processors counts: a try in which they had them for long shows nothing.
			const long, tries = 50 * time.Millisecond, 20
			for i := 1; ; i++ {
				got, after, waited := tt.try(t)
				good := got == tt.want && after <= stoppedLimit+deadlineGrace+time.Second
				if good {
					return
				}
				message := fmt.Sprintf("got %q %v after it ran again, want %q; %v of it without a processor", got, after, tt.want, waited)
				if i == tries || waited < long {
					t.Fatalf("try %d: %s", i, message)
				}
				t.Log(message)
			}
		})
	}
}

// try stops a client once. It returns what the client prints, how long after it ran again, and how long it, its worker and this process,
// which stops them, had no processor.
func (c stoppedCase) try(t *testing.T) (got string, after, waited time.Duration) {
	t.Helper()
	before := procfstest.Waited(os.Getpid())
	dir, err := os.MkdirTemp("", "gpushare-worker") // short: a socket's path has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	client := exec.CommandContext(testContext(t, time.Minute), os.Args[0])
	client.Env = append(os.Environ(), clientEnv+"="+pipe)
	client.Stderr = os.Stderr
	out, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer client.Wait()
	defer client.Process.Kill()
	lines := bufio.NewScanner(out)
	line := func() string {
		if !lines.Scan() {
			t.Fatalf("the client prints no more: %v", lines.Err())
		}
		return lines.Text()
	}
	worker, err := strconv.Atoi(line())
	if err != nil {
		t.Fatal(err)
	}
	call, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when the worker reads
	if err != nil {
		t.Fatal(err)
	}
	defer call.Close()
	if c.late {
		<-time.After(stoppedLimit - 150*time.Millisecond) // the place of the stop
	}
	signal := func(s syscall.Signal) (ended bool) {
		pids := []int{client.Process.Pid}
		if c.worker {
			pids = append(pids, worker)
		}
		for _, pid := range pids {
			err := syscall.Kill(pid, s)
			if errors.Is(err, unix.ESRCH) {
				return true
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return false
	}
	if signal(syscall.SIGSTOP) || !isStopped(t, client.Process.Pid) {
		// This process had no processor until the client's deadline had passed.
		return "the end of the client before it was stopped", 0, procfstest.Waited(os.Getpid()) - before
	}
	if !c.hang {
		call.Close()
	}
	<-time.After(stoppedLimit + 500*time.Millisecond) // how long it is stopped
	signal(syscall.SIGCONT)
	again := time.Now()
	if waited, err = time.ParseDuration(line()); err != nil {
		t.Fatal(err)
	}
	got = line()
	return got, time.Since(again), waited + procfstest.Waited(os.Getpid()) - before
}
