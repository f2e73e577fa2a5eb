package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/results"
)

// part is a part of all tests.
type part struct {
	name string
	runs []command
	// selected fails the part if one of the tests that it names did not run: a selector that matches nothing must not pass.
	selected []string
	// leftHere are what tests the part leaves out, and alsoLeft in words what it leaves out besides.
	leftHere []pkg
	alsoLeft []string
}

// command is one run of 'go test'.
type command struct {
	env, args, pkgs []string
}

// The environments of compilers. Tests without cgo use what was compiled for the programs; tests with cgo are linked as gpushare-nvml
// is, for the same reason.
var (
	withoutCgo = []string{"CGO_ENABLED=0"}
	withCgo    = []string{"CGO_ENABLED=1", "CGO_CFLAGS=-O2 -Wno-deprecated-declarations"}
	brief      = []string{"ENUMERATION=sampled"}
)

// Of the package that runs in virtual time, what 'suite faults' runs: whole it takes hours.
const (
	faultPackage = "./daemon"
	faultTests   = "TestEveryCallFailsOnce|TestKilled|TestGPUsAreChangedInParallel|TestAdviceLeadsToTheSpec"
)

// Many tests wait for other processes, so more tests than cores run. 'make lint' vets.
var common = []string{"-vet=off", "-count=1", "-parallel", "4"}

// programs are packages whose tests start the programs in bin/: the race detector is in none of them.
var programs = []string{"./test/node", "./test/docs", "./test/demo", "./test/hwtest"}

// simulations have one goroutine: the detector finds nothing in them.
var simulations = []string{"./quota", "./test/fairness", "./test/memorysim"}

// elsewhere is what is in no package of ./... that 'suite' runs.
var elsewhere = []string{
	"the race detector: 'make test-race'",
	"the order of locks: 'make test-locks'",
	"the driver of Kubernetes: 'make test-kubelet'",
	"every fault of every change, hours: 'make test-faults'",
	"clients of NVML from other projects: 'make test-tools'",
	"virtual machines: 'make test-vm', 'make test-engines'",
	"a GPU: 'make hwtest'",
}

func partOf(name string, all []pkg) (*part, error) {
	p := &part{name: name}
	switch name {
	case "quick":
		p.runs = []command{{env: withoutCgo, args: []string{"-short", "-timeout", "5m"}, pkgs: quickPackages(all)}}
		for _, l := range leftOut {
			p.alsoLeft = append(p.alsoLeft, fmt.Sprintf("%-22s %-56s %s", l.pkg, l.why, l.command()))
		}
		p.alsoLeft = append(p.alsoLeft, "all else: 'make test' names it")
	case "test":
		args := []string{"-timeout", "20m"}
		p.runs = []command{
			// What takes longest begins first.
			{
				env:  slices.Concat(withoutCgo, brief),
				args: args,
				pkgs: first(names(all, func(k *pkg) bool { return !k.cgo }), "./test/node"),
			},
			{
				env:  slices.Concat(withCgo, brief),
				args: append(args, "-buildmode=pie"),
				pkgs: names(all, func(k *pkg) bool { return k.cgo }),
			},
		}
		p.leftHere, p.alsoLeft = all, elsewhere
	case "whole":
		return wholeOf(all)
	case "race":
		p.runs = []command{{env: withCgo, args: []string{"-race", "-timeout", "20m"}, pkgs: names(all, func(k *pkg) bool {
			return !slices.Contains(programs, k.name) && !slices.Contains(simulations, k.name)
		})}}
		p.alsoLeft = []string{
			"packages that start the programs in bin/, and simulations: " + strings.Join(slices.Concat(programs, simulations), " "),
		}
	case "faults":
		p.runs = []command{
			{env: withoutCgo, args: []string{"-timeout", "100m", "-run", "^(" + faultTests + ")"}, pkgs: []string{faultPackage}},
		}
		p.selected = strings.Split(faultTests, "|")
	default:
		return nil, fmt.Errorf("there is no part %q: quick, test, whole, race, faults or stress", name)
	}
	return p, nil
}

// wholeOf is what 'suite test' leaves.
func wholeOf(all []pkg) (*part, error) {
	faults, err := regexp.Compile("^(" + faultTests + ")")
	if err != nil {
		return nil, fmt.Errorf("cannot select the faults: %w", err)
	}
	p := &part{name: "whole", alsoLeft: elsewhere}
	for _, cgo := range []bool{false, true} {
		c := command{env: withoutCgo, args: []string{"-timeout", "40m"}}
		if cgo {
			c.env, c.args = withCgo, append(c.args, "-buildmode=pie")
		}
		var tests []string
		for i := range all {
			of := all[i].left.all()
			if all[i].name == faultPackage {
				of = slices.DeleteFunc(of, faults.MatchString)
			}
			if all[i].cgo != cgo || len(of) == 0 {
				continue
			}
			c.pkgs = append(c.pkgs, all[i].name)
			tests = append(tests, of...)
		}
		if len(tests) > 0 {
			c.args, c.pkgs = append(c.args, "-run", "^("+strings.Join(tests, "|")+")$"), first(c.pkgs, "./test/node")
			p.runs, p.selected = append(p.runs, c), append(p.selected, tests...)
		}
	}
	return p, nil
}

// names are the names of packages.
func names(all []pkg, want func(*pkg) bool) (out []string) {
	for i := range all {
		if want(&all[i]) {
			out = append(out, all[i].name)
		}
	}
	return out
}

// first moves a package to the front.
func first(pkgs []string, name string) []string {
	if i := slices.Index(pkgs, name); i > 0 {
		pkgs = slices.Insert(slices.Delete(pkgs, i, i+1), 0, name)
	}
	return pkgs
}

// run runs the part and says what it left out.
func (p *part) run(ctx context.Context, out, errs io.Writer) error {
	began := time.Now()
	if err := os.MkdirAll("build/suite", 0o755); err != nil {
		return fmt.Errorf("cannot keep the results: %w", err)
	}
	file, err := os.Create(filepath.Join("build/suite", p.name+".json"))
	if err != nil {
		return fmt.Errorf("cannot keep the results: %w", err)
	}
	defer file.Close()
	var tests []results.Test
	var failed error
	for i := range p.runs {
		of, err := p.runs[i].run(ctx, file, out, errs)
		tests, failed = append(tests, of...), errors.Join(failed, err)
	}
	p.summary(tests, time.Since(began), out)
	return errors.Join(failed, p.unselected(tests))
}

func (c *command) run(ctx context.Context, file, out, errs io.Writer) ([]results.Test, error) {
	args := slices.Concat([]string{"test", "-json"}, common, c.args, c.pkgs)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stderr = errs
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot run the tests: %w", err)
	}
	tests, err := results.Read(io.TeeReader(pipe, file), tested{out})
	return tests, errors.Join(err, cmd.Wait())
}

// tested leaves out the lines of packages without tests.
type tested struct{ out io.Writer }

func (f tested) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "[no test") {
		return len(b), nil
	}
	return f.out.Write(b)
}

// summary says what ran, what was skipped here and why, and what was left out.
func (p *part) summary(tests []results.Test, duration time.Duration, out io.Writer) {
	count, packages := map[string]int{}, 0
	skipped := map[string][]string{} // by reason
	for i := range tests {
		t := &tests[i]
		if t.Name == "" {
			packages++
			continue
		}
		why := reason(t.Output)
		if t.Result == "skip" && why == enumeration.Left {
			continue // It is left out, below.
		}
		if count[t.Result]++; t.Result == "skip" {
			skipped[why] = append(skipped[why], t.Name)
		}
	}
	fmt.Fprintf(out, "\n%s: %d tests of %d packages passed in %s, %d failed, %d skipped\n",
		p.name, count["pass"], packages, duration.Round(time.Second), count["fail"], count["skip"])
	for _, why := range sorted(skipped) {
		fmt.Fprintf(out, "  skipped here, %s: %s\n", why, list(skipped[why]))
	}
	long, sampled := 0, 0
	for i := range p.leftHere {
		long, sampled = long+len(p.leftHere[i].left.long), sampled+len(p.leftHere[i].left.sampled)
	}
	if long+sampled > 0 {
		fmt.Fprintf(out, "\nleft to 'make test-whole': %d tests that take long; %d ran a sample of their cases, with *\n", long, sampled)
	}
	for i := range p.leftHere {
		l := p.leftHere[i].left
		var names []string
		for _, n := range l.sampled {
			names = append(names, n+"*")
		}
		if names = append(names, l.long...); len(names) > 0 {
			fmt.Fprintf(out, "  %s: %s\n", p.leftHere[i].name, list(names))
		}
	}
	if len(p.alsoLeft) > 0 {
		fmt.Fprintf(out, "\nnot part of it:\n  %s\n", strings.Join(p.alsoLeft, "\n  "))
	}
}

var position = regexp.MustCompile(`(?m)^ +\S+\.go:[0-9]+: (.*)$`)

// reason is why a test was skipped: the last line that it logged.
func reason(output string) string {
	lines := position.FindAllStringSubmatch(output, -1)
	if len(lines) == 0 {
		return "no reason"
	}
	return lines[len(lines)-1][1]
}

func sorted(m map[string][]string) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// list is names, without the word that all have.
func list(names []string) string {
	short := make([]string, len(names))
	for i, n := range names {
		short[i] = strings.TrimPrefix(n, "Test")
	}
	return strings.Join(short, " ")
}

// unselected is an error if a test that was selected did not run. A skipped test has said why.
func (p *part) unselected(tests []results.Test) error {
	var missing []string
	for _, want := range p.selected {
		if !slices.ContainsFunc(tests, func(t results.Test) bool { return strings.HasPrefix(t.Name, want) }) {
			missing = append(missing, want)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("selected and did not run: %s", strings.Join(missing, " "))
	}
	return nil
}
