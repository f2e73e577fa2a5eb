// Command quick runs the tests that take seconds, of all packages but those of a list, and says what it left out. With -stress it
// runs the same packages in a loop under load, in another order each time, and lists the tests that fail sometimes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/test/results"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	f := flag.NewFlagSet("quick", flag.ContinueOnError)
	f.SetOutput(errs)
	s := stress{dir: "build/stress", out: out}
	f.DurationVar(&s.time, "stress", 0, "run the packages in a loop for this `duration` and list the tests that fail sometimes")
	f.IntVar(&s.load, "load", 4, "`threads` that compute next to the tests of -stress")
	f.IntVar(&s.count, "count", 5, "how `often` each test runs in one process with -stress")
	if err := f.Parse(args); err != nil {
		return 2
	}
	all, err := packages(ctx)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	chosen := f.Args()
	if len(chosen) == 0 {
		chosen = quick(all)
	}
	if s.time > 0 {
		flaky, err := s.run(ctx, chosen)
		if err != nil {
			fmt.Fprintln(errs, err)
		}
		if flaky || err != nil {
			return 1
		}
		return 0
	}
	return once(ctx, chosen, out, errs)
}

// once runs the packages one time and says what was left out.
func once(ctx context.Context, chosen []string, out, errs io.Writer) int {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-short", "-json", "-timeout", "5m"}, chosen...)...)
	cmd.Stderr = errs
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(errs, "cannot run the tests: %v\n", err)
		return 1
	}
	tests, err := results.Read(pipe, failures{out})
	if err = errors.Join(err, cmd.Wait()); err != nil {
		fmt.Fprintf(errs, "FAIL: %v\n", err)
	}
	ran, skipped := 0, 0
	for _, t := range tests {
		if t.Name != "" {
			ran++
			if t.Result == "skip" {
				skipped++
			}
		}
	}
	fmt.Fprintf(out, "%d tests of %d packages in %.0f s; %d of them were skipped ('go test -v' says why)\n\nleft out, and what runs it:\n",
		ran, len(chosen), time.Since(began).Seconds(), skipped)
	for _, l := range leftOut {
		fmt.Fprintf(out, "  %-22s %-56s %s\n", l.pkg, l.why, l.command())
	}
	fmt.Fprintln(out, "  large enumerations, but for a sample: 'make test' and 'make test-faults'; races: 'make test'")
	if err != nil {
		return 1
	}
	return 0
}

func (l left) command() string {
	if l.how != "" {
		return l.how
	}
	return "go test " + l.pkg
}

// failures leaves out the lines of packages that passed.
type failures struct{ out io.Writer }

func (f failures) Write(b []byte) (int, error) {
	if text := string(
		b,
	); strings.HasPrefix(text, "ok  \t") || strings.HasPrefix(text, "?   \t") ||
		strings.Contains(text, "[no test files]") {
		return len(b), nil
	}
	return f.out.Write(b)
}

// packages are all packages of the module that have tests.
func packages(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...")
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the packages: %w", err)
	}
	var out []string
	for _, p := range strings.Fields(string(b)) {
		out = append(out, results.Short(p))
	}
	return out, nil
}

// quick are the packages that are not left out.
func quick(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(p string) bool {
		return slices.ContainsFunc(leftOut, func(l left) bool { return l.pkg == p })
	})
}
