package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/hwtest/readings"
)

// deepQueue is a program that launches as far ahead as the driver lets it.
var deepQueue = load{queue: 4096, kernel: 500 * time.Microsecond}

// drain measures how long the queued work of a frozen process runs, with the driver's default queues and with smaller ones.
func (t *test) drain(ctx context.Context) error {
	t.title("Queued work of a frozen process")
	t.say(
		"A program launches kernels of %s as fast as it can, is stopped after half a second, and is continued; %d times.\n",
		deepQueue.kernel, t.repeat,
	)
	t.say("| CUDA_SCALE_LAUNCH_QUEUES | shortest | median | longest |\n|---|---|---|---|")
	for _, scale := range []string{"", "0.25x"} {
		var env []string
		name := "not set"
		if scale != "" {
			env, name = []string{"CUDA_SCALE_LAUNCH_QUEUES=" + scale}, scale
		}
		all, err := t.drains(ctx, env)
		if err != nil {
			return err
		}
		t.say("| %s | %s | %s | %s |", name, all[0], all[len(all)/2], all[len(all)-1])
	}
	return nil
}

func (t *test) drains(ctx context.Context, env []string) (all []time.Duration, err error) {
	p, err := t.start(ctx, deepQueue, env...)
	defer end(p)
	if err != nil {
		return nil, err
	}
	for range t.repeat {
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := p.freeze(); err != nil {
			return nil, fmt.Errorf("cannot stop a program: %w", err)
		}
		at, err := p.drained(ctx, deepQueue.kernel)
		if err != nil {
			return nil, err
		}
		all = append(all, at.Sub(began).Round(100*time.Microsecond))
		if err := p.thaw(); err != nil {
			return nil, fmt.Errorf("cannot continue a program: %w", err)
		}
	}
	slices.Sort(all)
	return all, nil
}

// killMemory is what a killed program has allocated, in MiB. Its release takes longer than that of a context alone.
const killMemory = 4096

// kill compares SIGKILL of a busy program with freezing it, waiting for its queued work, and SIGKILL then: how long until its
// memory is free, and whether the driver still reports utilisation after that.
func (t *test) kill(ctx context.Context) error {
	t.title("SIGKILL of a busy program")
	t.say(
		"%d times each, with %d MiB allocated. Utilisation: how long the driver reported any after the kill; its sample period is part of that.\n",
		t.repeat,
		killMemory,
	)
	t.say(
		"| | memory free after: median | longest | utilisation reported for: median | longest | never free within 8 s |\n|---|---|---|---|---|---|",
	)
	for _, freezeFirst := range []bool{false, true} {
		var released, busy []time.Duration
		never := 0
		for range t.repeat {
			r, b, err := t.killOnce(ctx, freezeFirst)
			if err != nil {
				return err
			}
			if r == nil {
				never++
				continue
			}
			released, busy = append(released, *r), append(busy, b)
		}
		name := "SIGKILL at once"
		if freezeFirst {
			name = "frozen, queue finished, SIGKILL"
		}
		if len(released) == 0 {
			t.say("| %s | - | - | - | - | %d |", name, never)
			continue
		}
		slices.Sort(released)
		slices.Sort(busy)
		t.say(
			"| %s | %s | %s | %s | %s | %d |", name, released[len(released)/2], released[len(released)-1], busy[len(busy)/2],
			busy[len(busy)-1], never,
		)
	}
	return nil
}

// killOnce returns when the memory was free after the kill (nil: not within the time of the readings), and how long utilisation
// was reported.
func (t *test) killOnce(ctx context.Context, freezeFirst bool) (released *time.Duration, busy time.Duration, err error) {
	before, err := t.watch(ctx, 200*time.Millisecond, 5*time.Millisecond, false)
	if err != nil {
		return nil, 0, err
	}
	idle := before[len(before)-1].Used
	l := deepQueue
	l.memory = killMemory
	p, err := t.start(ctx, l)
	defer end(p)
	if err != nil {
		return nil, 0, err
	}
	var at uint64
	list, err := t.watchDuring(ctx, 8*time.Second, 5*time.Millisecond, false, func() error {
		if freezeFirst {
			if err := p.freeze(); err != nil {
				return fmt.Errorf("cannot stop a program: %w", err)
			}
			if _, err := p.drained(ctx, l.kernel); err != nil {
				return err
			}
		}
		at = uint64(procfs.BootTime().Microseconds())
		p.Kill()
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	if list[0].Boot > at {
		return nil, 0, errors.New("the readings of the GPU began after the kill")
	}
	busy = time.Duration(readings.BusyAfter(list, at)) * time.Microsecond
	micros, ok := readings.Released(list, at, idle+64<<20)
	if !ok {
		return nil, busy, nil
	}
	d := time.Duration(micros) * time.Microsecond
	return &d, busy, nil
}

// overshoot lets a tenant allocate as fast as it can, and reports how far it came past its limit.
func (t *test) overshoot(ctx context.Context) error {
	t.title("GPU memory: fill rate and overshoot")
	t.say("A program allocates up to %d MiB as fast as it can; the GPU's used memory is read every 5 ms.\n", t.capacity)
	outside, err := t.fill(ctx, func(argv, env []string) (*harness.Job, error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), env...)
		return t.node.Spawn(cmd)
	})
	if err != nil {
		return err
	}
	t.say("- outside a lease it fills %.1f GiB/s", outside.Rate/(1<<30))
	inside, err := t.fill(ctx, func(argv, _ []string) (*harness.Job, error) {
		return t.node.Run(append([]string{"-q", "-t", "hwtest-greedy", "--grant", "part", "--"}, argv...)...)
	})
	if err != nil {
		return err
	}
	t.say(
		"- in a lease of %d MiB it came to %.0f MiB: %.0f MiB too much, at %.1f GiB/s", quotaMiB, mib(inside.Most),
		mib(inside.Most)-quotaMiB, inside.Rate/(1<<30),
	)
	return nil
}

// fill runs a program that fills the GPU's memory until it ends, at most 8 s.
func (t *test) fill(ctx context.Context, run func(argv, env []string) (*harness.Job, error)) (readings.Growth, error) {
	before, err := t.watch(ctx, 200*time.Millisecond, 5*time.Millisecond, false)
	if err != nil {
		return readings.Growth{}, err
	}
	argv, env := t.host.fill(t.gpu, t.capacity)
	if argv == nil {
		return readings.Growth{}, skipped("there is no program that fills memory")
	}
	var j *harness.Job
	list, err := t.watchDuring(ctx, 8*time.Second, 5*time.Millisecond, false, func() (err error) {
		j, err = run(argv, env)
		return err
	})
	if j != nil {
		t.jobs = append(t.jobs, j)
		j.Kill()
	}
	if err != nil {
		return readings.Growth{}, err
	}
	g, ok := readings.FindGrowth(list, before[len(before)-1].Used)
	if !ok {
		return g, fmt.Errorf("the program that fills memory allocated nothing: %s", strings.TrimSpace(j.Output()))
	}
	return g, nil
}
