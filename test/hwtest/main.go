// Command hwtest runs the shipped programs on this host's real GPU and prints the results as Markdown. It reads, and runs
// its own small CUDA programs as leases. It never changes MIG, compute mode, clocks, power limits or persistence, never
// resets a GPU, and only stops its own processes. Without a GPU it prints what is missing and exits with 0.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// skipped is the reason why a part of the test, or the whole test, cannot run.
type skipped string

func (s skipped) Error() string { return string(s) }

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("hwtest", flag.ContinueOnError)
	flags.SetOutput(errs)
	virtual := flags.String("virtual", "", "run on a virtual node of this `file` instead; its figures mean nothing")
	window := flags.Duration("window", 30*time.Second, "duration of each measurement of shares, and of samples")
	warmUp := flags.Duration("warm-up", 15*time.Second, "let leases run this `long` before their shares are measured")
	repeat := flags.Int("repeat", 10, "the `number` of freezes and kills that are measured")
	only := flags.String("only", "", "measure only these `parts`, separated by commas: "+strings.Join(partNames(), ", "))
	if err := flags.Parse(args); err != nil {
		return 2
	}
	t := &test{out: out, window: *window, warmUp: *warmUp, repeat: *repeat}
	if *only != "" {
		t.only = strings.Split(*only, ",")
	}
	for _, name := range t.only {
		if !slices.Contains(partNames(), name) {
			fmt.Fprintf(errs, "hwtest: unknown part %q: choose from %s\n", name, strings.Join(partNames(), ", "))
			return 2
		}
	}
	if flags.NArg() > 0 || *repeat < 1 || *window < time.Second {
		fmt.Fprintln(errs, "hwtest: -repeat must be at least 1 and -window at least 1s; there are no arguments")
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute+6*(*window+*warmUp)+time.Duration(*repeat)*30*time.Second)
	defer cancel()
	err := t.all(ctx, *virtual)
	err = errors.Join(err, t.close())
	var skip skipped
	switch {
	case errors.As(err, &skip):
		fmt.Fprintf(out, "skipped: %s\n", skip)
		return 0
	case err != nil:
		fmt.Fprintf(errs, "hwtest: %v\n", err)
		return 1
	case t.failures > 0:
		fmt.Fprintf(out, "\n%d of the checks failed.\n", t.failures)
		return 1
	}
	fmt.Fprintf(out, "\nAll checks passed.\n")
	return 0
}

// test is one run of the test.
type test struct {
	out      io.Writer
	window   time.Duration
	warmUp   time.Duration
	repeat   int
	only     []string // names of parts; all when empty
	failures int

	node *harness.Node
	dir  string
	host host
	jobs []*harness.Job

	gpu      string // the UUID of the GPU that programs may use
	capacity int    // MiB that a program may fill
	watcher  string // the program that reads the driver directly
}

func (t *test) all(ctx context.Context, virtual string) error {
	bin, err := filepath.Abs("bin")
	if err != nil {
		return fmt.Errorf("cannot find the programs: %w", err)
	}
	for _, p := range []string{"gpushare", "gpushared", "gpushare-nvml", "gpushare-thaw", "gpushare-start", "gpushare-front"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			return skipped(p + " is missing: run 'make build'")
		}
	}
	if t.dir, err = os.MkdirTemp("", "gpushare-hw-"); err != nil {
		return fmt.Errorf("cannot create a directory: %w", err)
	}
	t.node = &harness.Node{Bin: bin, Dir: t.dir}
	if virtual != "" {
		t.node.File = virtual
		t.host = &virtualHost{node: t.node}
	} else {
		t.node.Settings = map[string]string{"host_root": "/"}
		t.host = &realHost{dir: t.dir}
	}
	if err := t.host.open(ctx); err != nil {
		return err
	}
	if err := t.node.StartDaemon(ctx); err != nil {
		return err
	}
	if err := t.identity(ctx); err != nil {
		return err
	}
	if err := t.load(ctx); err != nil {
		var skip skipped
		if !errors.As(err, &skip) {
			return err
		}
		t.say("Leases on the GPU were not tested: %s.", skip)
	}
	return t.counters(ctx)
}

func (t *test) say(format string, args ...any) { fmt.Fprintf(t.out, format+"\n", args...) }

func (t *test) title(s string) { fmt.Fprintf(t.out, "\n## %s\n\n", s) }

// check prints one result.
func (t *test) check(ok bool, format string, args ...any) {
	result := "ok"
	if !ok {
		result = "**FAILED**"
		t.failures++
	}
	fmt.Fprintf(t.out, "- %s: %s\n", result, fmt.Sprintf(format, args...))
}

func (t *test) counters(ctx context.Context) error {
	c, err := t.node.Client().Counters(ctx)
	if err != nil {
		return err
	}
	t.title("What the daemon did")
	for _, name := range []string{"converge.runs", "worker.messages", "worker.writes", "slice.writes", "steps", "freezes"} {
		t.say("- %s: %d", name, c[name])
	}
	t.check(c["worker.writes"] == 0, "no request to the driver changed a GPU")
	return nil
}

// close ends the started programs. The context of the run may have ended.
func (t *test) close() error {
	for _, j := range t.jobs {
		j.Stop()
	}
	if t.node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := os.Stat(t.node.Socket()); err == nil {
		// An empty spec removes the created cgroup slices.
		if r := t.node.CLIIn(ctx, "version: v1\nnode: {enforce: on}\n", "apply", "-f", "-", "--force"); r.Code != 0 {
			fmt.Fprintf(t.out, "\nnot cleaned up: %s\n", r.Err)
		}
	}
	err := t.node.Close()
	if t.host != nil {
		err = errors.Join(err, t.host.close())
	}
	return errors.Join(err, os.RemoveAll(t.dir))
}
