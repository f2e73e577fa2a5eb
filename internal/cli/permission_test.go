package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// needsReset is a daemon that applies a spec, and retries a GPU, only with the permission to reset GPU 1. It counts what it carried out.
func needsReset(done *atomic.Int32) routes {
	n, end := labNode(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	answer := func(w http.ResponseWriter, r *http.Request, result any) {
		if q := r.URL.Query(); q.Get("allow-reset") == "" && q.Get("reset") != n.GPUs[1].UUID || q.Get("check") != "" {
			refused := &api.Error{
				Kind:    api.KindNeedsPermission,
				Message: "GPU 1: cannot turn on MIG mode: this GPU must be reset for it; add --allow-reset to allow that",
				Hint:    "nothing was changed",
				Resets:  []string{n.GPUs[1].UUID},
				Plan: &api.Plan{SchemaVersion: 1, Generation: 2, Steps: []api.PlanStep{
					{
						ID:     1,
						GPU:    n.GPUs[1].UUID,
						Text:   "turn on MIG mode (resets the GPU)",
						Reason: "the spec has MIG on, the GPU has MIG off",
					},
				}},
			}
			w.WriteHeader(api.KindNeedsPermission.Status())
			_ = json.NewEncoder(w).Encode(map[string]any{"error": refused})
			return
		}
		done.Add(1)
		_ = json.NewEncoder(w).Encode(result)
	}
	return routes{
		"GET /v1/status": n,
		"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer(w, r, api.ApplyResult{Generation: 2, Changed: true, Plan: api.Plan{SchemaVersion: 1, Empty: true}})
		}),
		"POST /v1/gpus/1/retry": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer(w, r, api.Operation{ID: "op-1", State: "done", Finished: &end})
		}),
	}
}

// A change that resets a GPU is shown, with a question on a terminal. Without a yes nothing is changed, and a script has an exit
// code of its own.
func TestAResetNeedsAPermission(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("version: v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args     []string
		answer   string
		terminal bool
		code     int
		done     int32
		question bool
	}{
		"yes":                       {[]string{"apply", "-f", file}, "y\n", true, 0, 1, true},
		"no":                        {[]string{"apply", "-f", file}, "n\n", true, api.ExitNeedsPermission, 0, true},
		"another word":              {[]string{"apply", "-f", file}, "\n", true, api.ExitNeedsPermission, 0, true},
		"no answer":                 {[]string{"apply", "-f", file}, "", true, api.ExitNeedsPermission, 0, true},
		"the permission":            {[]string{"apply", "-f", file, "--allow-reset"}, "", true, 0, 1, false},
		"a check":                   {[]string{"apply", "-f", file, "--check"}, "y\n", true, api.ExitNeedsPermission, 0, false},
		"a plan":                    {[]string{"plan", "-f", file}, "y\n", true, api.ExitNeedsPermission, 0, false},
		"a plan with its exit code": {[]string{"plan", "-f", file, "--exit-code"}, "y\n", true, api.ExitNeedsPermission, 0, false},
		"the spec is the input":     {[]string{"apply", "-f", "-"}, "y\n", true, api.ExitNeedsPermission, 0, false},
		"JSON":                      {[]string{"apply", "-f", file, "--json"}, "y\n", true, api.ExitNeedsPermission, 0, false},
		"a script":                  {[]string{"apply", "-f", file}, "y\n", false, api.ExitNeedsPermission, 0, false},
		"a script, with permission": {[]string{"apply", "-f", file, "--allow-reset"}, "", false, 0, 1, false},
		"the answer of a pipe":      {[]string{"apply", "-f", file}, "y\n", true, api.ExitNeedsPermission, 0, false},
		"a retry":                   {[]string{"gpu", "retry", "1"}, "y\n", true, 0, 1, true},
		"a retry in a script":       {[]string{"gpu", "retry", "1"}, "y\n", false, api.ExitNeedsPermission, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var done atomic.Int32
			screen, tty := terminal(t)
			seen := make(chan string, 1)
			go func() {
				b, _ := io.ReadAll(screen) // It ends with an error when the other side is closed.
				seen <- string(b)
			}()
			var script strings.Builder
			stdio := cli.Stdio{In: strings.NewReader(c.answer), Out: &script, Err: &script}
			if strings.Contains(name, "pipe") {
				stdio.In = pipeOf(t, c.answer)
			}
			if c.terminal {
				stdio.Out, stdio.Err = tty, tty
			}
			code := cli.Run(t.Context(), c.args, []string{"GPUSHARE_SOCKET=" + fakeDaemon(t, needsReset(&done))}, stdio)
			tty.Close()
			said := <-seen + script.String()
			if code != c.code || done.Load() != c.done {
				t.Errorf("exit code %d and %d changes, want %d and %d: %q", code, done.Load(), c.code, c.done, said)
			}
			if found := strings.Contains(said, "Reset GPU 1 now? [y/N] "); found != c.question {
				t.Errorf("the question: %v, want %v: %q", found, c.question, said)
			}
			if (c.question || c.done == 0) && !strings.Contains(said, "turn on MIG mode") {
				t.Errorf("it does not show what would be done: %q", said)
			}
		})
	}
}

// pipeOf returns a pipe that has a text.
func pipeOf(t *testing.T, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return r
}

// The permission is for the GPUs that were shown. Where the repeated request would reset another one, it is shown, with a question of its own.
func TestThePermissionIsForWhatWasShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("version: v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := labNode()
	first, second := n.GPUs[1].UUID, n.GPUs[1].UUID+","+n.GPUs[2].UUID
	end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		args      []string
		answers   string
		code      int
		permitted []string
	}{
		{[]string{"apply", "-f", file}, "y\ny\n", 0, []string{"", first, second}},
		{[]string{"apply", "-f", file}, "y\nn\n", api.ExitNeedsPermission, []string{"", first}},
		{[]string{"gpu", "retry", "1"}, "y\ny\n", 0, []string{"", first, second}},
		{[]string{"gpu", "retry", "1"}, "y\nn\n", api.ExitNeedsPermission, []string{"", first}},
	} {
		var permitted []string
		answer := func(result any) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				permitted = append(permitted, q.Get("reset")+q.Get("allow-reset"))
				resets := []string{n.GPUs[1].UUID}
				switch q.Get("reset") {
				case second:
					_ = json.NewEncoder(w).Encode(result)
					return
				case first: // Meanwhile another GPU needs it too.
					resets = append(resets, n.GPUs[2].UUID)
				}
				w.WriteHeader(api.KindNeedsPermission.Status())
				_ = json.NewEncoder(w).Encode(map[string]any{"error": &api.Error{
					Kind: api.KindNeedsPermission, Message: "cannot turn on MIG mode", Resets: resets,
				}})
			})
		}
		daemon := routes{
			"GET /v1/status":        n,
			"PUT /v1/spec":          answer(api.ApplyResult{Generation: 2, Changed: true, Plan: api.Plan{SchemaVersion: 1, Empty: true}}),
			"POST /v1/gpus/1/retry": answer(api.Operation{ID: "op-1", State: "done", Finished: &end}),
		}
		screen, tty := terminal(t)
		seen := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(screen) // It ends with an error when the other side is closed.
			seen <- string(b)
		}()
		code := cli.Run(
			t.Context(), c.args, []string{"GPUSHARE_SOCKET=" + fakeDaemon(t, daemon)},
			cli.Stdio{In: iotest.OneByteReader(strings.NewReader(c.answers)), Out: tty, Err: tty},
		)
		tty.Close()
		if said := <-seen; code != c.code || !slices.Equal(permitted, c.permitted) || !strings.Contains(said, "Reset GPU 1, GPU 2 now?") {
			t.Errorf("%q: exit code %d, permitted were %q, want %d and %q: %q", c.args, code, permitted, c.code, c.permitted, said)
		}
	}
}
