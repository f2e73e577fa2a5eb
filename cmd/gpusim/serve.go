package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/finetime"
	"github.com/gpushare/gpushare/gpusim/hostroot"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/internal/durable"
)

// flags returns a flag set that prints to std.
func flags(name string, std stdio) *flag.FlagSet {
	f := flag.NewFlagSet("gpusim "+name, flag.ContinueOnError)
	f.SetOutput(std.err)
	return f
}

func serve(ctx context.Context, args []string, std stdio) int {
	f := flags("serve", std)
	path := f.String("node", "", "node `file`")
	root := f.String("root", "", "`directory` of the host root")
	mknod := f.Bool("mknod", false, "create real character devices (needs root)")
	library := f.String("library", "", "`file` of the driver library; default: the node's variant, next to this program")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	if *path == "" || *root == "" || f.NArg() > 0 {
		fmt.Fprintln(std.err, "gpusim serve: --node and --root are required, without further arguments")
		return exitUsage
	}
	if err := serveNode(ctx, *path, *root, *library, *mknod, std); err != nil {
		return fail(std, err)
	}
	return exitOK
}

func serveNode(ctx context.Context, path, dir, library string, mknod bool, std stdio) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("cannot read node file: %w", err)
	}
	file, err := nodefile.Decode(b)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("cannot use root: %w", err)
	}
	if library == "" {
		if library, err = findInstalled("libnvidia-ml.so." + file.Driver); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find own program: %w", err)
	}
	lock, err := lockRoot(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return fmt.Errorf("cannot read the time since boot: %w", err)
	}
	file.Config.Sampling.Uptime = time.Duration(up.Nano())
	fine, err := finetime.New()
	if err != nil {
		return err
	}
	defer fine.Close()
	node, err := gpusim.New(file.Config, hostClock{fine: fine})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	host, err := hostroot.Write(dir, node, hostroot.Options{Library: library, Program: self, Mknod: mknod})
	if err != nil {
		return err
	}
	defer host.Close()
	defer node.Close()
	log := slog.New(slog.NewTextHandler(std.err, nil))
	return server.New(node, log).Serve(ctx, dir, func() { fmt.Fprintln(std.out, "ready") })
}

// lockRoot makes sure that one process serves a root. Closing the file releases the lock.
func lockRoot(dir string) (*os.File, error) {
	if err := durable.MakeDirectories(server.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("cannot create host root: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(server.Dir(dir), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock host root: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot serve %s: another process serves it", dir)
	}
	return f, nil
}

func models(std stdio) int {
	names, err := nodefile.Models()
	if err != nil {
		return fail(std, err)
	}
	for _, n := range names {
		fmt.Fprintln(std.out, n)
	}
	return exitOK
}
