// Command gpusim runs a virtual node, controls it and runs programs on it. Under the names of the vendor's tools it
// replaces them. It is wiring: the rules are in package gpusim, the replacement of MPS in gpusim/mpsd.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpushare/gpushare/internal/version"
)

type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `usage: gpusim COMMAND

  serve --node FILE --root DIR [--mknod]   serve the virtual GPUs and write the host root; prints "ready"
  ctl --root DIR COMMAND …                 control a node: see "gpusim ctl help"
  exec --root DIR -- CMD …                 run a program on the node
  burn --gpu GPU …                         use a GPU as a CUDA program does
  models                                   list the boards that a node file can use
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args, os.Environ(), stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// run runs the program. args[0] is the name of the call.
func run(ctx context.Context, args, env []string, std stdio) int {
	name := filepath.Base(args[0])
	switch {
	case slices.Contains(mpsNames, name):
		return mpsControl(ctx, args, env, std.in, std.out, std.err)
	case name == "nvidia-modprobe":
		return modprobe(ctx, args[1:], env, std)
	case name == "nvidia-smi":
		return smi(ctx, args[1:], env, std)
	}
	if len(args) < 2 {
		fmt.Fprint(std.err, usage)
		return exitUsage
	}
	switch args[1] {
	case "serve":
		return serve(ctx, args[2:], std)
	case "ctl":
		return ctl(ctx, args[2:], env, std)
	case "exec":
		return execute(args[2:], env, std)
	case "burn":
		return burn(args[2:], env, std)
	case "models":
		return models(std)
	case "version", "--version":
		fmt.Fprintln(std.out, "gpusim "+version.Version)
		return exitOK
	case "help", "-h", "--help":
		fmt.Fprint(std.out, usage)
		return exitOK
	}
	fmt.Fprintf(std.err, "gpusim: unknown command %q\n%s", args[1], usage)
	return exitUsage
}

// fail prints an error and returns its exit code.
func fail(std stdio, err error) int {
	fmt.Fprintln(std.err, "gpusim:", err)
	return exitFailed
}

// lookup returns a variable of the environment.
func lookup(env []string, key string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v
		}
	}
	return ""
}

// findInstalled finds a file that is installed with this program: in the same directory, or in the directories of an
// installed system.
func findInstalled(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find own program: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", fmt.Errorf("cannot find own program: %w", err)
	}
	dir := filepath.Dir(self)
	for _, d := range []string{dir, filepath.Join(dir, "../libexec/gpushare"), filepath.Join(dir, "../lib/gpushare")} {
		path := filepath.Join(d, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("cannot find %s next to %s", name, self)
}
