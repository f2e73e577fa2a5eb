package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/harness"
)

// A shell on the virtual node whose 'go run' is killed ends, and so do all programs of the node.
func TestNothingOfAKilledShellIsLeft(t *testing.T) {
	for _, p := range []string{"gpushared", "gpusim", "gpushare-nvml"} {
		if _, err := os.Stat("../../bin/" + p); err != nil {
			t.Skipf("%s is missing: run 'make build' first", p)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "./test/demo", "-shell")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "SHELL=/bin/sh")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	if _, err := fmt.Fprintln(in, "echo node $GPUSIM_ROOT"); err != nil {
		t.Fatal(err)
	}
	dir := ""
	for s := bufio.NewScanner(out); dir == "" && s.Scan(); {
		if root, ok := strings.CutPrefix(s.Text(), "node "); ok {
			dir = strings.TrimSuffix(root, "/root")
		}
	}
	if dir == "" {
		t.Fatal("the shell did not start")
	}
	started := descendants(t, cmd.Process.Pid)
	names := map[string]bool{}
	for _, p := range started {
		names[p.Name] = true
	}
	for _, name := range []string{"demo", "sh", "gpushared", "gpusim"} {
		if !names[name] {
			t.Errorf("no %s is in %v", name, names)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	err = harness.Await(ctx, 50*time.Millisecond, "everything ends", func() (bool, error) {
		for _, p := range started {
			if s, err := procfs.Read(p.PID); err == nil && s.Start == p.Start && !s.Dead() {
				return false, fmt.Errorf("pid %d (%s) runs", s.PID, s.Name)
			}
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("%s is left", dir)
		}
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
}

func descendants(t *testing.T, pid int) (found []procfs.Stat) {
	t.Helper()
	all, err := procfs.All()
	if err != nil {
		t.Fatal(err)
	}
	mine := map[int]bool{pid: true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !mine[p.PID] && mine[p.PPID] {
				mine[p.PID], grown, found = true, true, append(found, p)
			}
		}
	}
	return found
}
