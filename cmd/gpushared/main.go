// Command gpushared is the daemon. It only connects the parts: see package daemon.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/gpushare/gpushare/daemon"
	"github.com/gpushare/gpushare/daemon/settings"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/monitor"
	"github.com/gpushare/gpushare/internal/version"
)

// exitConfig: a restart by systemd does not help (EX_CONFIG).
const exitConfig = 78

// memoryGoal is the size in bytes at which the garbage collector works harder.
const memoryGoal = 80 << 20

// collectAt is how much in percent the heap may grow until garbage is collected.
const collectAt = 50

func main() {
	limitRuntime()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// limitRuntime makes the Go runtime cheap for a program that mostly waits, unless the environment says otherwise. On one core it
// wakes no second thread for each of many short tasks; calls that block do not count. The live heap is a few MiB and grows by collectAt
// until it is collected: a collection takes 3 ms, and with 64 leases comes every two seconds. Where the heap may grow fivefold, the
// daemon has 15 MiB more. It may not grow beyond memoryGoal: many requests at once make it larger for a moment.
func limitRuntime() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryGoal)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	_ = loop.UseKernelTimers() // Without them the timers of the runtime do the same, for more of the CPU.
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("gpushared", flag.ContinueOnError)
	flags.SetOutput(errs)
	file := flags.String("settings", "", "the settings file (default "+settings.Path+")")
	check := flags.Bool("check-settings", false, "check the settings and exit")
	attach := flags.Bool(
		"attach-login-filter", false, "close GPUs to logins if the accepted spec says so, and exit: for the boot, before the daemon",
	)
	show := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errs, "gpushared: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if *show {
		fmt.Fprintln(out, version.Version)
		return 0
	}
	s, err := settings.Load(*file)
	if err == nil && *check {
		fmt.Fprintln(out, "ok")
		return 0
	}
	if err == nil && *attach {
		if err = daemon.AttachLoginFilter(s, out); err == nil {
			return 0
		}
	} else if err == nil {
		// Only a daemon: the unit sets it for all threads, and a check of the settings, which has the profile and not the unit, would be
		// denied it.
		_ = monitor.Relax()
		log, level := daemon.NewLogger(s, errs)
		err = daemon.Run(ctx, s, log, level)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(errs, "gpushared: %v\n", err)
	if hint := daemon.ProfileHint(err); hint != "" {
		fmt.Fprintf(errs, "gpushared: %s\n", hint)
	}
	if errors.Is(err, settings.ErrWrong) || errors.Is(err, daemon.ErrNewerState) || errors.Is(err, daemon.ErrOlderState) {
		return exitConfig
	}
	return 1
}
