// Package leftover ends what a test or a demo has started when that program ends in any way, SIGKILL included. A second process of
// the same program in a session of its own, the supervisor, waits for the end of the first. Then it kills what the first has started,
// with all that came of it, and removes the directories that were reported to it. An orderly end leaves it nothing to do.
//
// A process belongs to the first if it is a descendant of a child that was reported, if it inherited the token in its environment, or
// if its environment or its command line names one of the directories. What has none of these and has left its parent is not found.
package leftover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

const (
	// environment makes a process the supervisor of the process that it names, as PID:START.
	environment = "GPUSHARE_TEST_SUPERVISOR"
	// tokenEnv is inherited by what the first process starts.
	tokenEnv = "GPUSHARE_TEST_STARTED_BY"
)

// Place is a directory of a node, of which nothing may be left.
type Place struct {
	Dir    string
	Cgroup string // a directory of the cgroup hierarchy; it may be missing
	Remove bool   // Dir is removed
}

// message is one line to the supervisor.
type message struct {
	Keep  *Place `json:",omitempty"`
	Drop  string `json:",omitempty"` // a Dir
	Child int    `json:",omitempty"` // a pid
	Start uint64 `json:",omitempty"` // of the child
}

var (
	mu  sync.Mutex // guards the fields below
	out *json.Encoder
)

// A hook that each main function would have to call would be forgotten in one, and there the supervisor would run all tests.
func init() {
	if who := os.Getenv(environment); who != "" {
		os.Exit(supervise(who))
	}
}

// Start starts the supervisor of this process unless it runs.
func Start() error {
	mu.Lock()
	defer mu.Unlock()
	return startLocked()
}

func startLocked() error {
	if out != nil {
		return nil
	}
	start, err := procfs.Start(os.Getpid())
	if err != nil {
		return fmt.Errorf("cannot read the own start time: %w", err)
	}
	self := strconv.Itoa(os.Getpid()) + ":" + strconv.FormatUint(start, 10)
	in, pipe, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot create a pipe: %w", err)
	}
	defer in.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0], cmd.Dir, cmd.Stdin, cmd.Env = "test-supervisor", "/", in, append(os.Environ(), environment+"="+self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // A signal to the group of the test does not reach it.
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("cannot start the supervisor: %w", err), pipe.Close())
	}
	// It is not waited for: no goroutine of this process does what a test may count. The pipe stays open until this process ends.
	if err := cmd.Process.Release(); err != nil {
		return fmt.Errorf("cannot release the supervisor: %w", err)
	}
	out = json.NewEncoder(pipe)
	return os.Setenv(tokenEnv, self)
}

// Keep reports a place whose programs start from now on.
func Keep(p Place) error { return send(message{Keep: &p}) }

// Drop reports that nothing of a place is left.
func Drop(dir string) error { return send(message{Drop: dir}) }

// Child reports a child.
func Child(pid int) error {
	start, err := procfs.Start(pid)
	if err != nil {
		return nil // It has ended.
	}
	return send(message{Child: pid, Start: start})
}

// Without is an environment without the token, for programs that may outlive this one.
func Without(environ []string) []string {
	out := make([]string, 0, len(environ))
	for _, e := range environ {
		if len(e) < len(tokenEnv)+1 || e[:len(tokenEnv)+1] != tokenEnv+"=" {
			out = append(out, e)
		}
	}
	return out
}

func send(m message) error {
	mu.Lock()
	defer mu.Unlock()
	if err := startLocked(); err != nil {
		return err
	}
	if err := out.Encode(m); err != nil {
		return fmt.Errorf("cannot report to the supervisor: %w", err)
	}
	return nil
}
