// Command suite runs the tests of the repository, a part that its first argument names, and says at the end what it left out and what
// runs that. It is the one place that knows which part a test belongs to:
//
//	suite quick   what takes a minute, without cgo
//	suite test    everything that takes no more than five seconds, and a sample of large enumerations
//	suite whole   what 'suite test' leaves
//	suite race    the tests that run in their own process, with the race detector
//	suite faults  every driver call of a change fails once, and the daemon is killed at each: hours
//	suite stress  the packages of 'suite quick' in a loop under load, in another order each time: lists the tests that fail sometimes
//
// The results of all but stress are in build/suite, as 'go test -json' prints them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintln(errs, "usage: suite quick|test|whole|race|faults|stress [flags] [packages]")
		return 2
	}
	all, err := packages(ctx)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	if args[0] == "stress" {
		return runStress(ctx, args[1:], quickPackages(all), out, errs)
	}
	part, err := partOf(args[0], all)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	if err := part.run(ctx, out, errs); err != nil {
		fmt.Fprintf(errs, "FAIL: %v\n", err)
		return 1
	}
	return 0
}

func runStress(ctx context.Context, args, chosen []string, out, errs io.Writer) int {
	f := flag.NewFlagSet("stress", flag.ContinueOnError)
	f.SetOutput(errs)
	s := stress{dir: "build/stress", out: out}
	f.DurationVar(&s.time, "time", 10*time.Minute, "how `long`")
	f.IntVar(&s.load, "load", 4, "`threads` that compute next to the tests")
	f.IntVar(&s.count, "count", 5, "how `often` each test runs in one process")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if f.NArg() > 0 {
		chosen = f.Args()
	}
	flaky, err := s.run(ctx, chosen)
	if flaky {
		err = errors.Join(err, errors.New("some tests fail sometimes"))
	}
	if err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	return 0
}
