//go:build tools

package tools

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A task waits while another change is planned, which has no operation yet, and while it runs, but not longer than its time.
func TestAnsibleWaitsForAPlan(t *testing.T) {
	for _, version := range ansibleVersions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			a := newAnsible(t, version)
			for name, c := range map[string]struct {
				refusals int64 // of the first requests
				wait     string
				fails    bool
			}{
				"a short one":  {2, "900", false},
				"a longer one": {1 << 40, "1", true},
			} {
				requests := atomic.Int64{}
				socket := daemonThat(t, func(w http.ResponseWriter, r *http.Request) {
					switch {
					case r.Method != http.MethodPut:
						fmt.Fprint(w, "{}")
					case requests.Add(1) <= c.refusals:
						w.WriteHeader(http.StatusConflict)
						fmt.Fprint(w, `{"error": {"kind": "conflict", "message": "another change is under way", "planning": true}}`)
					default:
						fmt.Fprint(w, `{"schema_version": 1, "generation": 8, "changed": false, "plan": {"steps": [], "empty": true}}`)
					}
				})
				args, err := json.Marshal(map[string]string{"socket": socket, "content": "version: v1", "wait_timeout": c.wait})
				if err != nil {
					t.Fatal(err)
				}
				out, err := a.command(
					t,
					"ansible",
					"localhost",
					"-c",
					"local",
					"-e",
					"ansible_python_interpreter=/usr/bin/python3",
					"-m",
					"gpushare.node.spec",
					"-a",
					string(args),
				).CombinedOutput()
				if c.fails {
					if err == nil || !strings.Contains(string(out), "another change is under way") || requests.Load() < 2 {
						t.Errorf("%s: %v after %d requests: %s", name, err, requests.Load(), out)
					}
				} else if err != nil || !regexp.MustCompile(`"generation": 8`).Match(out) || requests.Load() != c.refusals+1 {
					t.Errorf("%s: %v after %d requests: %s", name, err, requests.Load(), out)
				}
			}
		})
	}
}

// daemonThat answers on a socket of its own.
func daemonThat(t *testing.T, answers http.HandlerFunc) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wait") // The path of a socket may have 107 bytes.
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s, ended := &http.Server{ReadHeaderTimeout: time.Minute, Handler: answers}, make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // Close ends it.
	}()
	t.Cleanup(func() {
		s.Close()
		<-ended
		os.RemoveAll(dir)
	})
	return path
}
