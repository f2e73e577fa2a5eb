package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// workload is a program that keeps a queue of equal kernels, and how to read what the GPU has done of them. That works also while
// the program is frozen.
type workload struct {
	argv []string
	env  []string
	done func(ctx context.Context, pid int) (seconds float64, err error) // of the whole GPU
}

// load is what a workload does.
type load struct {
	queue  int // unfinished kernels; 1 waits for each
	kernel time.Duration
	memory int           // MiB
	think  time.Duration // on the host, between kernels
}

// The progress of a program that uses the GPU through CUDA is in memory, and not in a file on a disk, which the driver may refuse to
// map for the GPU.
const sharedMemory = "/dev/shm"

func (h *realHost) workload(ctx context.Context, uuid string, l load) (workload, error) {
	iterations, err := h.iterations(ctx, uuid, l.kernel)
	if err != nil {
		return workload{}, err
	}
	file := h.newProgress()
	argv := []string{
		h.work, "--progress", file, "--memory", strconv.Itoa(max(l.memory, 1)), "--queue", strconv.Itoa(l.queue),
		"--iterations", strconv.Itoa(iterations), "--think", strconv.FormatInt(l.think.Microseconds(), 10),
	}
	return workload{argv, []string{"CUDA_VISIBLE_DEVICES=" + uuid}, func(context.Context, int) (float64, error) {
		finished, err := readProgress(file)
		return float64(finished) * l.kernel.Seconds(), err
	}}, nil
}

// newProgress names a new file for the progress of a program.
func (h *realHost) newProgress() string {
	h.files++
	return filepath.Join(h.progressDir, strconv.Itoa(h.files))
}

// iterations measures once how much work a kernel of a duration has on the idle GPU.
func (h *realHost) iterations(ctx context.Context, uuid string, kernel time.Duration) (int, error) {
	if n, ok := h.measured[kernel]; ok {
		return n, nil
	}
	out, err := output(
		ctx, []string{"CUDA_VISIBLE_DEVICES=" + uuid}, h.work, "--progress", h.newProgress(), "--kernel",
		strconv.FormatInt(kernel.Microseconds(), 10), "--seconds", "1",
	)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(out, "iterations ")
	var n int
	if _, err := fmt.Sscan(rest, &n); err != nil || n < 1 {
		return 0, fmt.Errorf("cannot read how long a kernel runs: %q", out)
	}
	h.measured[kernel] = n
	return n, nil
}

// readProgress reads the number of finished kernels.
func readProgress(file string) (uint32, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, fmt.Errorf("cannot read the progress of a program: %w", err)
	}
	defer f.Close()
	var b [4]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return 0, fmt.Errorf("cannot read the progress of a program: %w", err)
	}
	return binary.NativeEndian.Uint32(b[:]), nil
}

func (h *virtualHost) workload(_ context.Context, uuid string, l load) (workload, error) {
	argv := h.node.Burn(
		"--gpu", uuid, "--memory", fmt.Sprintf("%dMiB", max(l.memory, 1)), "--kernel", microseconds(l.kernel), "--queue",
		strconv.Itoa(l.queue),
	)
	switch {
	case l.think > 0:
		argv = append(argv, "--think", microseconds(l.think))
	case l.queue == 1:
		argv = append(argv, "--sync")
	}
	return workload{argv, []string{"GPUSIM_ROOT=" + h.node.Root()}, h.busy}, nil
}

func microseconds(d time.Duration) string { return fmt.Sprintf("%dus", d.Microseconds()) }

// process is a program that runs outside a lease, or in one.
type process struct {
	*harness.Job
	workload
}

// start starts a workload outside any lease, and waits until it runs.
func (t *test) start(ctx context.Context, l load, env ...string) (*process, error) {
	w, err := t.host.workload(ctx, t.gpu, l)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(w.argv[0], w.argv[1:]...)
	cmd.Env = append(append(os.Environ(), w.env...), env...)
	j, err := t.node.Spawn(cmd)
	if err != nil {
		return nil, err
	}
	t.jobs = append(t.jobs, j)
	return &process{j, w}, awaitReady(ctx, j)
}

// lease starts a workload in a lease of a tenant, and waits until it runs.
func (t *test) lease(ctx context.Context, tenant string, l load) (*process, error) {
	w, err := t.host.workload(ctx, t.gpu, l)
	if err != nil {
		return nil, err
	}
	j, err := t.job(ctx, tenant, w.argv)
	if err != nil {
		return nil, err
	}
	return &process{j, w}, nil
}

func awaitReady(ctx context.Context, j *harness.Job) error {
	wait, cancel := context.WithTimeout(ctx, time.Minute) // The first context on a cold GPU takes seconds.
	defer cancel()
	return j.AwaitLine(wait, "ready")
}

// finished is the GPU time that the process has used.
func (p *process) finished(ctx context.Context) (float64, error) { return p.done(ctx, p.PID()) }

// freeze stops the process outside any cgroup: a stopped process launches nothing, as a frozen one.
func (p *process) freeze() error { return syscall.Kill(p.PID(), syscall.SIGSTOP) }

func (p *process) thaw() error { return syscall.Kill(p.PID(), syscall.SIGCONT) }

// end ends processes, frozen ones too.
func end(processes ...*process) {
	for _, p := range processes {
		if p != nil {
			_ = p.thaw()
			p.Stop()
		}
	}
}

// idleAfter is the time without progress after which the queued work of a frozen process counts as finished.
func idleAfter(kernel time.Duration) time.Duration { return max(40*time.Millisecond, 4*kernel) }

// drained waits until the queued work of a frozen process has run and returns when that was: the time of its last progress.
func (p *process) drained(ctx context.Context, kernel time.Duration) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	last, err := p.finished(ctx)
	at := time.Now()
	for err == nil && time.Since(at) < idleAfter(kernel) {
		if ctx.Err() != nil {
			return at, fmt.Errorf("a frozen program still uses the GPU after 30 s")
		}
		var now float64
		if now, err = p.finished(ctx); now != last {
			last, at = now, time.Now()
		}
		time.Sleep(200 * time.Microsecond) // There is no event for the progress of a GPU.
	}
	return at, err
}
