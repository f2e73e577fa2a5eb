package names

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

const (
	// maxAnswer bounds the output of getent: a group with ten thousand members is about 100 KiB.
	maxAnswer = 4 << 20
	// killWait is the time for a killed getent to exit. One that waits in the kernel cannot be killed.
	killWait = 200 * time.Millisecond
)

// errStuck: a killed getent has not exited, and another one would block in the same way.
var errStuck = errors.New("a previous getent still hangs in the kernel")

var errTooMuch = fmt.Errorf("the output of getent is larger than %d MiB", maxAnswer>>20)

// Find returns the path of the host's getent, empty without one. Only the usual paths are checked: a daemon that runs as
// root does not search the PATH.
func Find() string {
	for _, p := range []string{"/usr/bin/getent", "/bin/getent", "/run/current-system/sw/bin/getent"} {
		if i, err := os.Stat(p); err == nil && i.Mode().IsRegular() && i.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// getent makes one call and returns its output. The caller has locked requests.
func (d *Directory) getent(caller context.Context, args ...string) ([]byte, error) {
	timeout := d.Timeout
	if timeout == 0 {
		timeout = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(caller, timeout)
	defer cancel()
	if d.stuck != nil { // On a busy host it may only need longer to exit.
		select {
		case <-d.stuck:
			d.stuck = nil
		case <-ctx.Done():
			return nil, cmp.Or(caller.Err(), errStuck)
		}
	}
	cmd := exec.CommandContext(ctx, d.Program, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = killWait / 2 // Its child processes may keep the output open; they are not waited for.
	out := &bounded{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start getent: %w", err)
	}
	var err error
	exited := make(chan struct{})
	go func() { // ends with the program, which is killed at its deadline
		err = cmd.Wait()
		close(exited)
	}()
	select {
	case <-exited:
		return out.answer(ctx, caller, err, timeout)
	case <-ctx.Done():
	}
	late := time.NewTimer(killWait)
	defer late.Stop()
	select {
	case <-exited:
	case <-late.C:
		d.stuck = exited
	}
	return nil, unanswered(caller, timeout)
}

func unanswered(caller context.Context, timeout time.Duration) error {
	if caller.Err() != nil {
		return caller.Err() // It did not wait for the answer.
	}
	return fmt.Errorf("getent did not answer within %v", timeout)
}

// bounded keeps what is written to it, up to a size; getent then ends by the broken pipe.
type bounded struct{ b bytes.Buffer }

// Write keeps all or nothing.
func (w *bounded) Write(p []byte) (int, error) {
	if w.b.Len()+len(p) > maxAnswer {
		return 0, errTooMuch
	}
	return w.b.Write(p)
}

// answer returns the output, unless the call failed. Exit code 2 (some keys were not found) is no failure.
func (w *bounded) answer(ctx, caller context.Context, err error, timeout time.Duration) ([]byte, error) {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.As(err, &exit) && exit.ExitCode() == 2:
		return w.b.Bytes(), nil
	case ctx.Err() != nil:
		return nil, unanswered(caller, timeout)
	}
	return nil, fmt.Errorf("getent failed: %w", err)
}
