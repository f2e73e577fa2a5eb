package cli_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// On a terminal the keys choose the table, stop a lease and end it, and the terminal is left as it was.
func TestTopOnATerminal(t *testing.T) {
	screen, tty := terminal(t)
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}); err != nil {
		t.Fatal(err)
	}
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	stops := make(chan bool, 1)
	socket := fakeDaemon(t, routes{
		"GET /v1/status": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.RawQuery != "sensors=true" {
				t.Errorf("the status is read with %q", q.URL.RawQuery)
			}
			_ = json.NewEncoder(w).Encode(labNode())
		}),
		"GET /v1/idle": api.Idle{SchemaVersion: 1},
		"DELETE /v1/leases/vision-3kq6": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			stops <- true
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).
				Encode(map[string]any{"error": &api.Error{Kind: api.KindDenied, Message: "it is of another user", Hint: "ask them"}})
		}),
	})
	code := make(chan int, 1)
	go func() {
		code <- cli.Run(t.Context(), []string{"top", "-d", "1h"}, []string{"GPUSHARE_SOCKET=" + socket, "TERM=xterm"}, cli.Stdio{In: tty, Out: tty, Err: io.Discard})
	}()
	seen, b := "", make([]byte, 4096)
	await := func(text string) {
		t.Helper()
		for !strings.Contains(seen, text) {
			n, err := screen.Read(b)
			if err != nil {
				t.Fatalf("%v, after %q", err, seen)
			}
			seen += string(b[:n])
		}
		seen = ""
	}
	press := func(key string) {
		t.Helper()
		if _, err := screen.WriteString(key); err != nil {
			t.Fatal(err)
		}
	}
	await("quit")
	press("t")
	await("PRIORITY")
	press("l")
	await("COMMAND")
	press("/3kq6\r\x1b[Bk")
	await("any other key does not")
	press("y")
	await("it is of another user (ask them)")
	<-stops
	press("q")
	await("\x1b[?1049l")
	if got := <-code; got != 0 {
		t.Errorf("exit code %d", got)
	}
	after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("%v, the terminal is not as it was: %+v, %+v", err, before, after)
	}
}

// Ctrl-C and an interrupt end top also while the daemon does not answer.
func TestTopEndsWhileItReads(t *testing.T) {
	for name, end := range map[string]func(screen *os.File, interrupt func()) error{
		"Ctrl-C":    func(screen *os.File, _ func()) error { _, err := screen.WriteString("\x03"); return err },
		"interrupt": func(_ *os.File, interrupt func()) error { interrupt(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			screen, tty := terminal(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			reads := make(chan bool, 1)
			answered := false
			socket := fakeDaemon(t, routes{
				"GET /v1/status": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					if !answered {
						answered = true
						_ = json.NewEncoder(w).Encode(labNode())
						return
					}
					reads <- true
					<-q.Context().Done()
				}),
				"GET /v1/idle": api.Idle{SchemaVersion: 1},
			})
			code := make(chan int, 1)
			go func() {
				code <- cli.Run(ctx, []string{"top", "-d", "500ms"}, []string{"GPUSHARE_SOCKET=" + socket, "TERM=xterm"}, cli.Stdio{In: tty, Out: tty, Err: io.Discard})
			}()
			go func() { _, _ = io.Copy(io.Discard, screen) }() // It ends with the terminal.
			<-reads
			if err := end(screen, interrupt); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-code:
				if got != 0 {
					t.Errorf("exit code %d", got)
				}
			case <-time.After(time.Minute):
				t.Fatal("it does not end")
			}
		})
	}
}

// What top cannot show, and why.
func TestTopIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		answer any
		args   []string
		code   int
		says   string
	}{
		"without a role":  {&api.Error{Kind: api.KindDenied, Message: "you have no role"}, nil, 4, "you have no role"},
		"unknown table":   {nil, []string{"--by", "queue"}, 2, "it is lease, gpu, tenant, user or process"},
		"no such batch":   {nil, []string{"-b", "--by", "user"}, 2, "it is gpu, tenant or lease"},
		"a count below 0": {nil, []string{"-n", "-1"}, 2, "--count is 0 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			screen, tty := terminal(t)
			go func() { _, _ = io.Copy(io.Discard, screen) }() // It ends with the terminal.
			r := routes{}
			if c.answer != nil {
				r["GET /v1/status"] = c.answer
			}
			var errs strings.Builder
			code := cli.Run(
				t.Context(), append([]string{"top"}, c.args...), []string{"TERM=xterm", "GPUSHARE_SOCKET=" + fakeDaemon(t, r)},
				cli.Stdio{In: tty, Out: tty, Err: &errs},
			)
			if code != c.code || !strings.Contains(errs.String(), c.says) {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
		})
	}
}
