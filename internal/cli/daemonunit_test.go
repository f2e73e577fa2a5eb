package cli_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/programs"
)

// program writes a script that stands for a program of systemd.
func program(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := programs.Write(path, "#!/bin/sh\n"+text+"\n"); err != nil {
		t.Fatal(err)
	}
	return path
}

// resetting listens as systemd does for a service that does not start: it resets the connections.
func resetting(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close() // With the unread request: the peer's connection is reset.
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return path
}

const (
	failedUnit = "echo LoadState=loaded; echo ActiveState=failed; echo SubState=failed; echo Result=exit-code"
	lastLine   = "echo 'gpushared: cannot read the settings: line 3: unknown key \"staet_dir\"'"
)

// Every command says why the daemon does not run, whichever way its socket refuses: what systemd says of the unit, and the last line
// of its log. Programs that hang, fail or flood hold no command up.
func TestDaemonThatDidNotStart(t *testing.T) {
	enumeration.Long(t)
	for name, c := range map[string]struct {
		show, log string
		socket    func(*testing.T, string) string
		says      []string
		not       string
	}{
		"its connections are reset": {
			failedUnit, lastLine, resetting,
			[]string{": gpushared.service is failed (exit-code)\n", "'systemctl status gpushared'", "its last log line: gpushared: cannot read the settings: line 3"},
			"reset by peer",
		},
		"there is no socket": {
			failedUnit, lastLine, func(_ *testing.T, dir string) string { return filepath.Join(dir, "s") },
			[]string{"gpushared.service is failed (exit-code)", "its last log line: gpushared: cannot read"},
			"no such socket",
		},
		"it is started again and again": {
			"echo ActiveState=activating; echo SubState=auto-restart; echo Result=exit-code", lastLine, resetting,
			[]string{"gpushared.service is activating (exit-code)", "its last log line"},
			"",
		},
		"it was stopped": {
			"echo LoadState=loaded; echo ActiveState=inactive; echo SubState=dead; echo Result=success", "true", resetting,
			[]string{"gpushared.service is inactive (dead)", "'systemctl status gpushared'"},
			"last log line",
		},
		"it is not installed": {
			"echo LoadState=not-found; echo ActiveState=inactive", "true", resetting, []string{"gpushared.service is not installed"}, "",
		},
		"the log may not be read": {failedUnit, "echo no permission >&2; exit 1", resetting, []string{"gpushared.service is failed", "'journalctl -u gpushared'"}, "last log line"},
		"a long, hostile line": {
			failedUnit, `printf 'a\033[31mb\nc'; head -c 1000000 /dev/zero | tr '\0' x`, resetting, []string{"its last log line: a"}, "\x1b",
		},
		"a flood":             {failedUnit, "yes 1234567890", resetting, []string{"its last log line: 1234567890"}, "1234567890\n123"},
		"the log hangs":       {failedUnit, "exec sleep 600", resetting, []string{"gpushared.service is failed"}, "last log line"},
		"systemd hangs":       {"exec sleep 600", lastLine, resetting, []string{"'systemctl status gpushared'"}, "last log line"},
		"systemd fails":       {"exit 1", lastLine, resetting, []string{"'systemctl status gpushared'"}, "last log line"},
		"it was just started": {"echo ActiveState=active; echo SubState=running; echo Result=success", lastLine, resetting, []string{"try again"}, "last log line"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "u")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			socket := c.socket(t, dir)
			show, log := program(t, dir, "show", c.show), program(t, dir, "log", c.log)
			t.Cleanup(cli.SetUnit(socket, dir, show, log))
			began := time.Now()
			r := runOn(t.Context(), socket, "", "status")
			if time.Since(began) > time.Minute {
				t.Errorf("it takes %s", time.Since(began))
			}
			if r.code != api.ExitUnreachable || r.out != "" || c.not != "" && strings.Contains(r.err, c.not) {
				t.Errorf("exit code %d, and it must not say %q:\n%s", r.code, c.not, r.all)
			}
			for _, want := range c.says {
				if !strings.Contains(r.err, want) {
					t.Errorf("it says not %q:\n%s", want, r.err)
				}
			}
			if len(r.err) > 1000 {
				t.Errorf("it prints %d bytes", len(r.err))
			}
		})
	}
}

// It is every command, also with --json, and only the unit's own socket: of another daemon the journal says nothing.
func TestEveryCommandNamesTheUnit(t *testing.T) {
	dir, err := os.MkdirTemp("", "u")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := resetting(t, dir)
	t.Cleanup(cli.SetUnit(socket, dir, program(t, dir, "show", failedUnit), program(t, dir, "log", lastLine)))
	const why = "its last log line: gpushared: cannot read the settings"
	for _, args := range []string{
		"status", "plan", "get", "doctor", "version", "history", "events", "audit", "usage", "metrics", "explain x", "lease list",
		"lease show x", "lease stop x", "lease logs x", "gpu list", "gpu cordon 0", "gpu drain 0", "mps list", "mig list", "tenant list",
		"condition list", "config reload", "operation list", "operation wait x", "maintenance", "maintenance on", "ready --timeout 1ms", "ready --timeout 1ns",
		"apply -f -", "rollback 1", "top -b -n 1",
	} {
		t.Run(args, func(t *testing.T) {
			r := runOn(t.Context(), socket, "version: v1\n", strings.Fields(args)...)
			if r.code == api.ExitOK || !strings.Contains(r.err, why) || !strings.Contains(r.err, "'systemctl status gpushared'") {
				t.Errorf("exit code %d, want %q:\n%s", r.code, why, r.all)
			}
		})
	}
	r := runOn(t.Context(), socket, "", "status", "--json")
	var reported struct{ Error api.Error }
	if err := json.Unmarshal([]byte(r.err), &reported); err != nil || !strings.Contains(reported.Error.Hint, why) {
		t.Errorf("with --json it is %v:\n%s", err, r.all)
	}
	t.Cleanup(cli.SetUnit("/run/another", dir, program(t, dir, "show", failedUnit), program(t, dir, "log", lastLine)))
	if r := runOn(t.Context(), socket, "", "status"); strings.Contains(r.all, why) {
		t.Errorf("of another socket it says:\n%s", r.all)
	}
}
