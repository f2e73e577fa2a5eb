// Command gpushare-front reads what callers who are not administrators send to the daemon: see package internal/front. gpushared
// starts it; its standard input is their control socket.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"

	"github.com/gpushare/gpushare/internal/front"
	"github.com/gpushare/gpushare/internal/version"
)

// memoryGoal is the size in bytes at which the garbage collector works harder.
const memoryGoal = 64 << 20

func main() {
	debug.SetMemoryLimit(memoryGoal)
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, in *os.File, out, errs io.Writer) int {
	flags := flag.NewFlagSet("gpushare-front", flag.ContinueOnError)
	flags.SetOutput(errs)
	show := flags.Bool("version", false, "print the version and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *show:
		fmt.Fprintln(out, "gpushare-front", version.Version)
		return 0
	}
	control, err := controlSocket(in)
	if err != nil || flags.NArg() > 0 {
		fmt.Fprintln(errs, "gpushare-front: gpushared starts this command; its input is a socket")
		return 2
	}
	log := slog.New(slog.NewTextHandler(errs, nil))
	if err := serve(ctx, control, log); err != nil {
		log.Error("gpushare-front failed", "err", err)
		return 1
	}
	return 0
}

func controlSocket(in *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(in)
	if err != nil {
		return nil, fmt.Errorf("cannot use the input: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok || u.LocalAddr().Network() != "unixpacket" {
		c.Close()
		return nil, errors.New("the input is no socket of packets")
	}
	return u, in.Close()
}

// serve reads the routes, gives up what it does not need, and serves until the daemon has ended.
func serve(ctx context.Context, control *net.UnixConn, log *slog.Logger) error {
	var table front.Table
	if err := front.Receive(control, &table); err != nil {
		return err
	}
	f, err := front.New(table, log)
	if err != nil {
		return err
	}
	if err := front.Send(control, front.Confine()); err != nil {
		return err
	}
	return f.Serve(ctx, control)
}
