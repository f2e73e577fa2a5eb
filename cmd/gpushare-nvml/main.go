//go:build cgo

// Command gpushare-nvml is the worker process in which gpushared calls the vendor's library.
//
// It is wiring only: it connects to the given socket, sends its token, runs the requested operations and exits when the
// connection ends. It exits with the daemon, holds no lock and stores nothing on disk.
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
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/nvml"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/resident"
	"github.com/gpushare/gpushare/internal/version"
)

// stdio are the output streams of the command.
type stdio struct {
	out, err io.Writer
	process  bool // they are those of a process of its own, which restricts itself
}

// collectAt is how much in percent the heap may grow until garbage is collected. The live heap is less than a MiB, and a collection takes
// less than a ms: with the default the heap would grow to 4 MiB.
const collectAt = 25

func main() {
	limitRuntime()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], stdio{os.Stdout, os.Stderr, true})
	stop()
	os.Exit(code) // do not wait: a call inside the driver may never return
}

// limitRuntime makes the Go runtime cheap for a program that mostly waits, unless the environment says otherwise. On one core it wakes no
// second thread for each message. A call inside the driver does not count, however long it takes: with one core the runtime lets the
// others run after microseconds.
func limitRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

// run runs the command and returns its exit code: 0 when the connection ended, 1 on failure, 2 for wrong usage.
func run(ctx context.Context, args []string, std stdio) int {
	flags := flag.NewFlagSet("gpushare-nvml", flag.ContinueOnError)
	flags.SetOutput(std.err)
	connect := flags.String("connect", "", "connect to the daemon at this `socket`")
	token := flags.String("token", "", "send this `token` to the daemon")
	library := flags.String("library", "", "load the NVML library from this `path`")
	hostRoot := flags.String("host-root", "", "read /proc and /sys under this `directory`")
	confined := flags.Bool("confined", false, "its files are restricted already")
	verbose := flags.Bool("debug", false, "log more")
	show := flags.Bool("version", false, "print the version and exit")
	var excluded []gpu.UUID
	flags.Func("exclude", "do not access the GPU with this `UUID`; may be repeated", func(s string) error {
		if s == "" {
			return errors.New("empty")
		}
		excluded = append(excluded, gpu.UUID(s))
		return nil
	})
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *show:
		fmt.Fprintln(std.out, "gpushare-nvml", version.Version)
		return 0
	case *connect == "" || *token == "" || flags.NArg() > 0:
		fmt.Fprintln(std.err, "gpushare-nvml: gpushared starts this command; it needs --connect and --token")
		return 2
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(std.err, &slog.HandlerOptions{Level: level}))

	if std.process && !*confined {
		log.Warn("the files of the GPU worker are not restricted", "err", restrictFiles(*hostRoot)) // Else it does not return.
	}
	conn, err := worker.Dial(ctx, *connect, *token)
	if err != nil {
		log.Error("gpushare-nvml failed", "err", err)
		return 1
	}
	open := func(context.Context) (gpu.Driver, error) {
		d, err := nvml.Open(
			nvml.WithLibraryPath(*library), nvml.WithHostRoot(*hostRoot), nvml.WithExcluded(excluded...), nvml.WithLogger(log))
		if err != nil {
			return nil, err // not d: a nil *Driver is not a nil gpu.Driver
		}
		if std.process {
			// Most of the program was for the start.
			if err := resident.Release(); err != nil {
				log.Debug("cannot return memory to the kernel", "err", err)
			}
			if err := calls().Apply(); err != nil {
				log.Warn("the calls of the GPU worker are not restricted", "err", err)
			}
		}
		return d, nil
	}
	if err := (worker.Worker{Open: open, Unusable: nvml.Unusable, Log: log}).Serve(ctx, conn); err != nil {
		log.Error("gpushare-nvml failed", "err", err)
		return 1
	}
	return 0
}
