package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpushare/gpushare/test/leftover"
	"github.com/gpushare/gpushare/test/results"
)

// stress runs the tests of packages again and again, each time in another order.
type stress struct {
	time  time.Duration
	load  int // threads that compute
	count int // runs of each test in one process
	dir   string
	out   io.Writer

	mu     sync.Mutex // guards the fields below and out
	runs   map[test]int
	flakes map[test]*flake
}

// test is one test, or with an empty name the whole process of a package: it panicked, did not end, or left processes.
type test struct{ pkg, name string }

// flake is what is known of the failures of a test.
type flake struct {
	failed int
	seed   uint64 // the order of the first failure
	file   string // its output
}

// run reports whether a test failed. It builds each package once.
func (s *stress) run(ctx context.Context, pkgs []string) (flaky bool, err error) {
	if err := errors.Join(os.MkdirAll(s.dir, 0o755), leftover.Start()); err != nil {
		return false, fmt.Errorf("cannot prepare: %w", err)
	}
	var binaries []string
	for _, p := range pkgs {
		file, err := filepath.Abs(filepath.Join(s.dir, strings.ReplaceAll(strings.TrimPrefix(p, "./"), "/", "_")+".test"))
		if err != nil {
			return false, err
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", file, p)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return false, fmt.Errorf("cannot build the tests of %s: %w", p, err)
		}
		binaries = append(binaries, file)
	}
	ctx, cancel := context.WithTimeout(ctx, s.time)
	defer cancel()
	s.runs, s.flakes = map[test]int{}, map[test]*flake{}
	var all sync.WaitGroup
	runtime.GOMAXPROCS(s.load + runtime.NumCPU())
	for range s.load {
		all.Go(func() {
			for ctx.Err() == nil {
				for range 1 << 16 { // About 50 µs.
				}
			}
		})
	}
	next := s.order(ctx, len(pkgs))
	for range runtime.NumCPU() {
		all.Go(func() {
			for i := range next {
				s.one(ctx, pkgs[i], binaries[i])
			}
		})
	}
	all.Wait()
	s.report()
	return len(s.flakes) > 0, nil
}

// order sends the packages in another order each time, until the time is over.
func (s *stress) order(ctx context.Context, n int) <-chan int {
	next := make(chan int)
	go func() {
		defer close(next)
		for {
			for _, i := range rand.Perm(n) {
				select {
				case next <- i:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return next
}

// one runs the tests of a package a few times.
func (s *stress) one(ctx context.Context, pkg, binary string) {
	seed := rand.Uint64() >> 1
	cmd := exec.CommandContext(ctx, binary, "-test.short", "-test.v", "-test.timeout=10m", fmt.Sprintf("-test.count=%d", s.count),
		fmt.Sprintf("-test.shuffle=%d", seed))
	cmd.Dir = pkg
	cmd.Env = append(os.Environ(), "ENUMERATION=sampled")
	// A process that it left may keep its output open.
	cmd.WaitDelay = time.Minute
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	err := cmd.Run()
	if ctx.Err() != nil {
		return // It was killed because the time is over.
	}
	tests, _ := results.Read(bytes.NewReader(text.Bytes()), io.Discard) // Reading a buffer never fails.
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := false
	for _, t := range tests {
		s.runs[test{pkg, t.Name}]++
		if t.Result == "fail" {
			failed = true
			s.failedLocked(test{pkg, t.Name}, seed, text.Bytes())
		}
	}
	s.runs[test{pkg, ""}]++
	if err != nil && !failed {
		s.failedLocked(test{pkg, ""}, seed, text.Bytes())
	}
}

func (s *stress) failedLocked(t test, seed uint64, text []byte) {
	f := s.flakes[t]
	if f == nil {
		f = &flake{seed: seed}
		f.file = filepath.Join(
			s.dir,
			fmt.Sprintf("%s-%s-%d.log", strings.ReplaceAll(strings.TrimPrefix(t.pkg, "./"), "/", "_"), t.name, seed),
		)
		if err := os.WriteFile(f.file, text, 0o644); err != nil {
			f.file = err.Error()
		}
		s.flakes[t] = f
		fmt.Fprintf(s.out, "%s %s failed: %s\n", t.pkg, t.name, f.file)
	}
	f.failed++
}

// report lists the tests that failed, with their rates and what repeats them.
func (s *stress) report() {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := 0
	for t, n := range s.runs {
		if t.name != "" {
			total += n
		}
	}
	fmt.Fprintf(s.out, "\n%d tests ran %d times in %s next to %d threads that compute; %d failed at least once\n",
		len(s.runs), total, s.time, s.load, len(s.flakes))
	var order []test
	for t := range s.flakes {
		order = append(order, t)
	}
	slices.SortFunc(order, func(a, b test) int {
		return strings.Compare(a.pkg+" "+a.name, b.pkg+" "+b.name)
	})
	for _, t := range order {
		f := s.flakes[t]
		name := t.name
		if name == "" {
			name = "(the process)"
		}
		fmt.Fprintf(s.out, "%s %s: %d of %d runs, %.2f %%\n  go test %s -short -count=%d -shuffle=%d    its output: %s\n",
			t.pkg, name, f.failed, s.runs[t], 100*float64(f.failed)/float64(s.runs[t]), t.pkg, s.count, f.seed, f.file)
	}
}
