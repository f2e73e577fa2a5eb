// Command gpushare-thaw thaws what gpushared froze and did not thaw in time: scopes past their deadline, and all that a
// daemon left frozen when it died. It is a unit of its own and holds a lock while it runs; without that lock nobody
// freezes anything.
//
// It knows no tenants and no quotas, opens no socket, and writes nothing but cgroup.freeze.
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

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	code := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole command: 0 when it was told to end, 1 when it failed, 2 on wrong usage.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("gpushare-thaw", flag.ContinueOnError)
	flags.SetOutput(stderr)
	runDir := flags.String("run-dir", "/run/gpushare", "the daemon's run `directory`")
	mount := flags.String("cgroup-mount", "", "where the cgroup v2 hierarchy is mounted (found when not given)")
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
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if *mount == "" {
		h, err := cgroup.FindHierarchy()
		if err != nil {
			fmt.Fprintf(stderr, "gpushare-thaw: %v\n", err)
			return 1
		}
		*mount = h.Mount
	}
	t := &cgroup.Thawer{RunDir: *runDir, Freezer: cgroup.KernelFreezer{Root: *mount}, Log: log}
	if err := t.Run(ctx); err != nil {
		fmt.Fprintf(stderr, "gpushare-thaw: %v\n", err)
		return 1
	}
	return 0
}
