// Command demo shows the whole product on a virtual DGX A100: the shipped daemon, command line and worker, with real
// processes on virtual GPUs. It prints what a reader wants to see, checks each statement, and exits non-zero if one is
// false. It is not a benchmark. With -shell it starts a shell on that node instead.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// deadline ends a demo that hangs. On an idle machine it takes half a minute, next to a build much longer.
const deadline = 4 * time.Minute

func main() {
	shell := flag.Bool("shell", false, "start a shell on the virtual node")
	times := flag.Int("times", 1, "run the demo this `number` of times, count the passes, and keep the output of failed runs in build/")
	flag.Parse()
	if flag.NArg() > 0 || *times < 1 {
		flag.Usage()
		os.Exit(2)
	}
	bin, err := filepath.Abs("bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *shell {
		s := newShow(bin, os.Stdout)
		if err := errors.Join(s.shell(context.Background()), s.close()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *times > 1 {
		os.Exit(repeat(ctx, *times, "build", os.Stdout, func(out io.Writer) int { return newShow(bin, out).run(ctx, out, out) }))
	}
	os.Exit(newShow(bin, os.Stdout).run(ctx, os.Stdout, os.Stderr))
}

func newShow(bin string, out io.Writer) *show {
	n := &harness.Node{Bin: bin, File: "testdata/nodes/dgx-a100.yaml"}
	// The host of the demo knows the members that the spec names.
	n.Settings = map[string]string{"getent": filepath.Join(filepath.Dir(bin), "test/demo/getent")}
	return &show{node: n, spec: "examples/dgx-a100.yaml", out: out}
}

func (s *show) run(ctx context.Context, out, errs io.Writer) int {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	began := time.Now()
	err := s.all(ctx)
	err = errors.Join(err, s.close())
	if err != nil {
		if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			fmt.Fprintln(errs, "\ninterrupted; everything was cleaned up")
			return 130
		}
		fmt.Fprintf(errs, "\nthe demo failed: %v\n", err)
		return 1
	}
	fmt.Fprintf(out, "\nAll statements were checked. The demo took %.0f seconds.\n", time.Since(began).Seconds())
	return 0
}

// show is one run of the demo.
type show struct {
	node *harness.Node
	spec string
	out  io.Writer
	jobs []*harness.Job
	step int

	shared uint64 // freezes that were counted when the two jobs of one GPU had started
}

func (s *show) all(ctx context.Context) error {
	for _, act := range []func(context.Context) error{
		s.start, s.apply, s.runJobs, s.isolation, s.overuse, s.shares, s.crash, s.again,
	} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *show) title(format string, args ...any) {
	s.step++
	fmt.Fprintf(s.out, "\n── %d. %s\n\n", s.step, fmt.Sprintf(format, args...))
}

func (s *show) say(format string, args ...any) { fmt.Fprintf(s.out, "   "+format+"\n", args...) }

// cli runs a command and shows it with its output.
func (s *show) cli(ctx context.Context, args ...string) harness.Result {
	fmt.Fprintf(s.out, "$ gpushare %s\n", strings.Join(args, " "))
	r := s.node.CLI(ctx, args...)
	for _, line := range strings.SplitAfter(r.Out+r.Err, "\n") {
		if line != "" {
			fmt.Fprint(s.out, "  "+line)
		}
	}
	return r
}

// must is cli for a command that must exit with 0.
func (s *show) must(ctx context.Context, args ...string) (harness.Result, error) {
	r := s.cli(ctx, args...)
	if r.Code != 0 {
		return r, fmt.Errorf("gpushare %s exited with %d", args[0], r.Code)
	}
	return r, nil
}

// job starts gpushare run with a virtual CUDA program and waits until its memory is allocated.
func (s *show) job(ctx context.Context, tenant, grant string, burn ...string) (*harness.Job, error) {
	fmt.Fprintf(s.out, "$ gpushare run -t %s --grant %s -- gpusim-burn %s &\n", tenant, grant, strings.Join(burn, " "))
	j, err := s.node.Run(append([]string{"-t", tenant, "--grant", grant, "--"}, s.node.Burn(burn...)...)...)
	if err != nil {
		return nil, err
	}
	s.jobs = append(s.jobs, j)
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := j.AwaitLine(wait, "ready"); err != nil {
		return nil, fmt.Errorf("the job of %s/%s: %w", tenant, grant, err)
	}
	return j, nil
}

func (s *show) close() error {
	for _, j := range s.jobs {
		j.Stop()
	}
	if s.node.Dir == "" {
		return nil
	}
	// An empty spec removes MPS, slices and device rules. The context of the demo may have ended.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r := s.node.CLIIn(ctx, "version: v1\nnode: {enforce: on}\n", "apply", "-f", "-", "--force")
	var err error
	if r.Code != 0 {
		err = fmt.Errorf("cannot clean up: %s", strings.TrimSpace(r.Err))
	}
	return errors.Join(err, s.node.Close())
}
