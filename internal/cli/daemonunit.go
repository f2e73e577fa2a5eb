package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/text"
)

// daemonUnit is the unit whose socket a command connects to. systemd listens for it, so a daemon that does not start is a connection
// that is reset: the reason is in the journal.
type daemonUnit struct {
	name   string
	socket string
	booted string // a directory that exists where systemd is the service manager
	show   string // programs, by their paths: what PATH has may be the user's
	log    string
}

var installedUnit = daemonUnit{
	name:   "gpushared.service",
	socket: api.SocketPath,
	booted: "/run/systemd/system",
	show:   "/usr/bin/systemctl",
	log:    "/usr/bin/journalctl",
}

const (
	unitTimeout = 3 * time.Second // for both programs
	unitOutput  = 16 << 10        // bytes that are read of each
	lastLine    = 300             // bytes of the line that are shown
)

// explain completes the error of a request that was not answered: what systemd says of the unit, and the last line that the daemon
// logged, if the caller may read it. It changes nothing where another socket was named, or where systemd does not answer.
func (u *daemonUnit) explain(socket string, e *api.Error) *api.Error {
	if socket == "" {
		socket = api.SocketPath
	}
	if _, err := os.Stat(u.booted); err != nil || socket != u.socket || e.Kind != api.KindUnavailable {
		return e
	}
	// The caller's context may be over, and the reason is shown nevertheless.
	ctx, cancel := context.WithTimeout(context.Background(), unitTimeout)
	defer cancel()
	state, runs := u.state(ctx)
	if state == "" || runs {
		return e
	}
	out := *e
	out.Message = "cannot reach gpushared at " + socket + ": " + state
	out.Hint = "'systemctl status gpushared' shows the reason"
	if line := u.last(ctx); line != "" {
		out.Hint += "; its last log line: " + line
	} else {
		out.Hint += ", and to administrators 'journalctl -u gpushared' its log"
	}
	return &out
}

// state is what systemd says of the unit, as in "gpushared.service is failed (exit-code)"; empty if it says nothing.
func (u *daemonUnit) state(ctx context.Context) (state string, runs bool) {
	of := map[string]string{}
	show := u.output(ctx, u.show, "show", "--property=LoadState,ActiveState,SubState,Result", u.name)
	for line := range strings.Lines(show) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		of[name] = value
	}
	active, detail := of["ActiveState"], of["SubState"]
	switch {
	case active == "":
		return "", false
	case of["LoadState"] == "not-found":
		return u.name + " is not installed", false
	case of["LoadState"] == "masked":
		return u.name + " is masked", false
	case active == "failed" || of["Result"] != "" && of["Result"] != "success":
		detail = of["Result"]
	}
	return u.name + " is " + text.Short(active, lastLine) + " (" + text.Short(detail, lastLine) + ")", active == "active"
}

// last is the last line that a process of the unit logged since the boot. Without the right to read the journal there is none.
func (u *daemonUnit) last(ctx context.Context) string {
	lines := u.output(ctx, u.log, "--quiet", "--no-pager", "--system", "--boot", "--output=cat", "--lines=1", "_SYSTEMD_UNIT="+u.name)
	line, _, _ := strings.Cut(strings.TrimSpace(lines), "\n")
	return text.Short(line, lastLine)
}

// output is the beginning of what a program prints; empty if it fails. It ends with ctx at the latest.
func (u *daemonUnit) output(ctx context.Context, argv ...string) string {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_COLORS=0")
	cmd.WaitDelay = time.Second // A child of it may have the pipe.
	r, w, err := os.Pipe()
	if err != nil {
		return ""
	}
	defer r.Close()
	cmd.Stdout = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return ""
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = r.SetReadDeadline(deadline) // A pipe has one.
	}
	b, _, readErr := boundedread.Prefix(r, unitOutput)
	if readErr != nil {
		b = nil
	}
	if readErr != nil || len(b) == unitOutput {
		_ = cmd.Process.Kill() // It may have ended, or has more to print than is read.
	}
	if err := cmd.Wait(); err != nil && len(b) < unitOutput {
		return ""
	}
	return string(bytes.ToValidUTF8(b, []byte("?")))
}
