package cli_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// Selected leases are stopped only after a yes.
func TestStopAfterAQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		answer  string
		code    int
		stopped int32
	}{
		"yes":     {"yes\n", 0, 3},
		"y":       {"Y\n", 0, 3},
		"no":      {"n\n", 1, 0},
		"neither": {"\n", 1, 0},
		"nothing": {"", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var stopped atomic.Int32
			stop := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				stopped.Add(1)
				_, _ = io.WriteString(w, "{}")
			})
			r := routes{"GET /v1/status": labNode(), "GET /v1": api.Info{Caller: api.Caller{Role: "admin"}}}
			for _, l := range labNode().Leases {
				r["DELETE /v1/leases/"+l.ID] = stop
			}
			screen, tty := terminal(t)
			seen := make(chan string, 1)
			go func() {
				b, _ := io.ReadAll(screen) // It ends with an error when the other side is closed.
				seen <- string(b)
			}()
			code := cli.Run(
				t.Context(), []string{"lease", "stop", "--all"}, []string{"GPUSHARE_SOCKET=" + fakeDaemon(t, r)},
				cli.Stdio{In: strings.NewReader(c.answer), Out: tty, Err: tty},
			)
			tty.Close()
			if screen := <-seen; code != c.code || stopped.Load() != c.stopped || !strings.Contains(screen, "Stop 3 leases? [y/N] ") {
				t.Errorf("exit code %d and %d stopped, want %d and %d: %q", code, stopped.Load(), c.code, c.stopped, screen)
			}
		})
	}
}
