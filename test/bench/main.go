// Command bench measures the product against its targets and prints a table; build/bench.json has the same figures.
// It runs the shipped programs on a virtual node. It prints whether each target is met, and does not fail if one is not.
package main

import (
	"context"
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

// bench is one run.
type bench struct {
	bin      string
	only     []string      // names of parts; all when empty
	runs     int           // of each measurement in real time
	warmUp   time.Duration // before a measurement of shares
	window   time.Duration // of a measurement of shares
	scenario string        // measure shares of scenarios with this text in their names only; empty: all
	full     bool          // one scenario after the other, over all samplers
	markdown bool          // tables for the documentation
	seeds    int           // of each scenario and sampler in virtual time
	simulate bool          // print the tables of virtual time, and nothing else
	errs     io.Writer
}

// part is one group of figures.
type part struct {
	name  string
	about string
	limit func(b *bench) time.Duration // how long it may take
	run   func(b *bench, ctx context.Context) ([]Figure, error)
}

func atMost(d time.Duration) func(*bench) time.Duration {
	return func(*bench) time.Duration { return d }
}

// parts are all figures, in the order of the table.
var parts = []part{
	{"plan", "the MIG planner and a replay of requests", atMost(2 * time.Minute), (*bench).plan},
	{"node", "start, converge, status, run, memory, idle CPU, re-layout", atMost(5 * time.Minute), (*bench).node},
	{
		"run",
		"gpushare run until its command runs, alone and 8 at once, and the start of its process",
		atMost(2 * time.Minute),
		(*bench).toExec,
	},
	{"simulated", "the scheduler in virtual time: every scenario with every sampler", atMost(10 * time.Minute), (*bench).simulated},
	{"memory", "GPU memory in virtual time: overshoot, and what neighbours lose", atMost(2 * time.Minute), (*bench).memory},
	{"fairness", "shares of GPU time in real time, with real freezing", (*bench).fairnessLimit, (*bench).fairness},
	{
		"latency",
		"requests of a service next to training in real time, by the training's kernels and with latency: low",
		(*bench).latencyLimit,
		(*bench).latency,
	},
	{
		"cost",
		"CPU time of 64 leases on 8 GPUs, of 8 that are alone, and with forks of other programs",
		atMost(5 * time.Minute),
		(*bench).cost,
	},
	{"mps", "CPU time of 8 MPS control daemons and of what watches them", atMost(6 * time.Minute), (*bench).mps},
	{"flood", "run of one user while 50 others flood the socket", atMost(5 * time.Minute), (*bench).flood},
	{"member", "gpushare run of a member, read by gpushare-front, next to one of root", atMost(2 * time.Minute), (*bench).throughFront},
	{"fail-open", "a stopped and a killed daemon: when the last lease is thawed", atMost(3 * time.Minute), (*bench).failOpen},
}

func main() {
	if what := os.Getenv(burdenEnv); what != "" {
		fmt.Fprintln(os.Stderr, "bench:", burden(what))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	b := &bench{errs: errs}
	var only string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.StringVar(&only, "only", "", "measure only these `parts`, separated by commas: "+strings.Join(names(), ", "))
	flags.IntVar(&b.runs, "runs", 1, "measure shares this `number` of times, each with new leases")
	flags.DurationVar(&b.window, "for", time.Minute, "measure shares this `long`")
	flags.DurationVar(&b.warmUp, "warm-up", 20*time.Second, "let leases run this `long` before their shares are measured")
	flags.StringVar(&b.scenario, "scenario", "", "measure shares only of the scenarios whose name contains this `text`")
	flags.BoolVar(
		&b.full, "full", false,
		"measure shares one scenario after the other, with each sampler of the virtual node; a row for each in virtual time",
	)
	flags.IntVar(&b.seeds, "seeds", 8, "run each scenario in virtual time this `number` of times with each sampler")
	flags.BoolVar(
		&b.simulate,
		"tables",
		false,
		"print the tables of virtual time as docs/maintainers/robustness.md and docs/timeslice.md have them",
	)
	flags.BoolVar(&b.markdown, "markdown", false, "print the tables as Markdown")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := b.check(only, flags.Args()); err != nil {
		fmt.Fprintln(errs, "bench:", err)
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, b.limit())
	defer cancel()
	if b.simulate {
		if err := b.tables(ctx, out); err != nil {
			fmt.Fprintln(errs, "bench:", err)
			return 1
		}
		return 0
	}
	r, err := b.all(ctx)
	if len(r.Figures) > 0 { // A part that failed does not discard the figures of the others.
		show(out, r.Figures, b.markdown)
		if e := write("build/bench.json", r); err == nil {
			err = e
		}
	}
	if err != nil {
		fmt.Fprintln(errs, "bench:", err)
		return 1
	}
	return 0
}

func names() (out []string) {
	for _, p := range parts {
		out = append(out, p.name)
	}
	return out
}

// check reads the list of parts and rejects values without a meaning.
func (b *bench) check(only string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unknown argument %q; see -help", rest[0])
	}
	if only != "" {
		b.only = strings.Split(only, ",")
	}
	for _, name := range b.only {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("unknown part %q: choose from %s", name, strings.Join(names(), ", "))
		}
	}
	switch {
	case len(b.scenarios()) == 0:
		return fmt.Errorf("no scenario with %q in its name: choose from %s", b.scenario, strings.Join(scenarioNames(), "; "))
	case b.seeds < 1 || b.seeds > 1000:
		return fmt.Errorf("-seeds %d: use 1 to 1000", b.seeds)
	case b.runs < 1 || b.runs > 100:
		return fmt.Errorf("-runs %d: use 1 to 100", b.runs)
	case b.window < shortWindow || b.window > time.Hour:
		return fmt.Errorf("-for %s: use %s to 1h", b.window, shortWindow)
	case b.warmUp < 0 || b.warmUp > time.Hour:
		return fmt.Errorf("-warm-up %s: use 0 to 1h", b.warmUp)
	}
	bin, err := filepath.Abs("bin")
	if err != nil {
		return fmt.Errorf("cannot find the programs: %w", err)
	}
	b.bin = bin
	return nil
}

func (b *bench) chosen(p part) bool { return len(b.only) == 0 || slices.Contains(b.only, p.name) }

// limit is the sum of the limits of the chosen parts.
func (b *bench) limit() time.Duration {
	total := time.Minute
	for _, p := range parts {
		if b.chosen(p) {
			total += p.limit(b)
		}
	}
	return total
}

func (b *bench) all(ctx context.Context) (Report, error) {
	r, err := newReport()
	if err != nil {
		return r, err
	}
	b.warnIfBusy(r.Machine)
	for _, p := range parts {
		if !b.chosen(p) {
			continue
		}
		began := time.Now()
		figures, err := p.run(b, ctx)
		for i := range figures {
			figures[i].Part = p.name
		}
		r.Figures = append(r.Figures, figures...)
		if err != nil {
			return r, fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(b.errs, "bench: %s: %s\n", p.name, time.Since(began).Round(time.Second))
	}
	r.Machine.LoadAfter, err = loadAverage()
	return r, err
}

// node measures the daemon on the largest node of the targets: 8 GPUs with 7 instances each, and 64 tenants.
func (b *bench) node(ctx context.Context) (figures []Figure, err error) {
	n := &harness.Node{Bin: b.bin, File: "testdata/nodes/dgx-a100-mig.yaml"}
	defer n.Close()
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	if r := n.CLIIn(ctx, bigSpec(), "apply", "-f", "-"); r.Code != 0 {
		return nil, fmt.Errorf("cannot apply the large spec: %s", r.Err)
	}
	for _, measure := range []func(context.Context, *harness.Node) ([]Figure, error){
		startToReady, convergeAgain, statusLoad, commandLine, memoryAndIdle, attribution, relayout,
	} {
		f, err := measure(ctx, n)
		if err != nil {
			return figures, err
		}
		figures = append(figures, f...)
	}
	if r := n.CLIIn(ctx, emptySpec, "apply", "-f", "-"); r.Code != 0 {
		return figures, fmt.Errorf("cannot remove the large spec: %s", r.Err)
	}
	return figures, nil
}

func (b *bench) plan(ctx context.Context) ([]Figure, error) { return planner(ctx) }

const emptySpec = "version: v1\nnode: {enforce: on}\n"
