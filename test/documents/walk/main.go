// walk walks through pages on a host where gpushare is installed, as its readers would: root in a shell, other users by ssh to this
// host. It prints what differs from the pages. It changes the host as the pages do.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/test/documents"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("walk", flag.ContinueOnError)
	f.SetOutput(stderr)
	simulator := f.String("simulator", "", "directory of the programs of the virtual node, for preparations")
	node := f.String("node", "", "root of the virtual node, for preparations")
	program := f.Bool("program", false, "print the program that stands for those of readers, and end")
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "usage: walk [-simulator DIR] [-node DIR] [-program] [PAGE...]")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return 2
	}
	if *program {
		fmt.Fprint(stdout, documents.Program(filepath.Join(*simulator, "gpusim-burn"), "GPUSIM_ROOT="+*node))
		return 0
	}
	h := host(*simulator, *node)
	code := 0
	for _, file := range f.Args() {
		text, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		p, err := documents.Parse(string(text))
		if err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", file, err)
			return 1
		}
		w := h.Walk(ctx, filepath.Base(file), &p)
		for _, wrong := range w.Wrong {
			fmt.Fprintln(stdout, wrong)
			code = 1
		}
		fmt.Fprintf(stdout, "NOTE %d commands of %s, %d of them not as it says\n", w.Ran, filepath.Base(file), len(w.Wrong))
	}
	return code
}

// host is this host. A reader has the environment of a login, without anything of the virtual node.
func host(simulator, node string) *documents.Host {
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	env := []string{"HOME=/root", "USER=root", "LANG=C.UTF-8", "PATH=" + path}
	asRoot := func(ctx context.Context, text string, env ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "bash", "-c", text)
		cmd.Dir, cmd.Env = "/root", env
		return cmd
	}
	return &documents.Host{
		Client:   &client.Client{},
		Deadline: 3 * time.Minute, // An emulated processor installs a package in more than one.
		Prepare: func(ctx context.Context, reader, text string) *exec.Cmd {
			if reader == "" {
				reader = "root"
			}
			return asRoot(ctx, text, append(env[:3:3], "PATH="+path+":"+simulator, "GPUSIM_ROOT="+node, "READER="+reader)...)
		},
		Type: func(ctx context.Context, reader, text string) *exec.Cmd {
			if reader == "" || reader == "root" {
				return asRoot(ctx, text, env...)
			}
			cmd := exec.CommandContext(ctx, "ssh", "-o", "BatchMode=yes", reader+"@localhost", text)
			cmd.Env = env
			return cmd
		},
		Write: func(reader, name, text string) error {
			if reader == "" {
				reader = "root"
			}
			u, err := user.Lookup(reader)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(u.HomeDir, name), []byte(text), 0o644)
		},
		Runs: func(b *documents.Block) bool { return b.Place == documents.Everywhere || b.Place == documents.RealHost },
		Lack: func(*documents.Step) string { return "" },
	}
}
