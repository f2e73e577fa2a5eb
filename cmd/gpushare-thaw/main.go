// Command gpushare-thaw thaws scopes that gpushared did not thaw in time: scopes whose deadline has passed, and all scopes
// that a daemon left frozen when it exited, was stopped or hangs. It is a unit of its own. It locks a file while it runs and
// writes there when it last looked; without that the daemon freezes nothing.
//
// It knows no tenants and no quotas, opens no socket, and writes only cgroup.freeze.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole command. It returns 0 after SIGTERM or SIGINT, 1 after a failure, 2 for wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("gpushare-thaw", flag.ContinueOnError)
	flags.SetOutput(stderr)
	runDir := flags.String("run-dir", "/run/gpushare", "the daemon's run `directory`")
	mount := flags.String("cgroup-mount", "", "the mount point of the cgroup v2 hierarchy (default: from /proc/self/mountinfo)")
	show := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "gpushare-thaw: unexpected argument %q: it takes flags only\n", flags.Arg(0))
		return 2
	}
	if *show {
		fmt.Fprintln(stdout, "gpushare-thaw "+version.Version)
		return 0
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if *mount == "" {
		h, err := cgroup.FindHierarchy()
		if err != nil {
			fmt.Fprintf(stderr, "gpushare-thaw: %v\n", err)
			return 1
		}
		*mount = h.Mount
	}
	t := &cgroup.ThawWatchdog{RunDir: *runDir, Freezer: cgroup.KernelFreezer{Root: *mount}, Log: log}
	if err := t.Run(ctx); err != nil {
		fmt.Fprintf(stderr, "gpushare-thaw: %v\n", err)
		return 1
	}
	return 0
}
