package cli_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// A command whose output cannot be written fails and says why.
func TestFullDisk(t *testing.T) {
	endless := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		emitting(labEvents()...)(w, q)
		<-q.Context().Done()
	})
	r := routes{
		"GET /v1/spec": api.SpecDocument{
			Generation: 7,
			YAML:       "version: v1\n",
		},
		"GET /v1/status":          labNode(),
		"GET /v1/plan":            labPlan(),
		"GET /v1/events":          endless,
		"GET /v1/history":         labHistory(),
		"GET /v1/usage":           labUsage(),
		"GET /v1/audit":           emitting(labAudit()...),
		"GET /v1/leases/a-1/logs": printing("epoch 1\n"),
	}
	for _, args := range []string{"get", "get --json", "status", "status --json", "plan --exit-code", "history", "usage --csv", "audit", "audit --json", "events", "events --json", "lease logs a-1", "mig export --help"} {
		t.Run(args, func(t *testing.T) {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Skipf("this host has no usable /dev/full: %v", err)
			}
			defer full.Close()
			var errs bytes.Buffer
			code := cli.Run(
				t.Context(), strings.Fields(args), []string{"GPUSHARE_SOCKET=" + fakeDaemon(t, r)},
				cli.Stdio{In: strings.NewReader(""), Out: full, Err: &errs},
			)
			if code != api.ExitFailed || !strings.Contains(errs.String(), "no space left on device") {
				t.Errorf("exit code %d, want 1: %s", code, errs.String())
			}
		})
	}
}

// The wait for the other end of a pipe ends by an interrupt.
func TestInterruptedPipe(t *testing.T) {
	for _, args := range []string{"apply -f", "plan -f", "spec validate", "mig plan --offline --batch", "mig convert"} {
		t.Run(args, func(t *testing.T) {
			pipe := filepath.Join(t.TempDir(), "pipe")
			if err := syscall.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if r := runOn(
				ctx,
				"/nowhere",
				"",
				append(strings.Fields(args), pipe)...); r.code != 130 ||
				!strings.Contains(r.err, "interrupted") {
				t.Errorf("exit code %d: %s", r.code, r.all)
			}
			other, err := os.OpenFile(pipe, os.O_RDWR, 0) // It ends the wait that was left behind.
			if err != nil {
				t.Fatal(err)
			}
			other.Close()
		})
	}
}

// What is the caller's mistake exits with 2 in every command, before anything is requested.
func TestEveryMistakeExitsWith2(t *testing.T) {
	several := []string{
		"gpushare run",
		"gpushare lease stop",
		"gpushare mig import",
		"gpushare mig remove",
	} // They take any number of arguments.
	for _, c := range verbs(t) {
		args := strings.Fields(c.CommandPath())[1:]
		if r := runOn(
			t.Context(),
			"/nowhere",
			"",
			append(args, "--no-such-flag")...); r.code != api.ExitUsage || !strings.Contains(r.err, "hint: ") ||
			r.out != "" {
			t.Errorf("'%s --no-such-flag' exits with %d: %s", c.CommandPath(), r.code, r.all)
		}
		if slices.Contains(several, c.CommandPath()) {
			continue
		}
		if r := runOn(t.Context(), "/nowhere", "", append(args, "a", "b", "c", "d", "e")...); r.code != api.ExitUsage || r.out != "" {
			t.Errorf("'%s a b c d e' exits with %d: %s", c.CommandPath(), r.code, r.all)
		}
	}
}
