package cli_test

import (
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/cli"
)

// On a terminal the keys choose the table and end it, and the terminal is left as it was.
func TestTopOnATerminal(t *testing.T) {
	screen, tty := terminal(t)
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	socket := fakeDaemon(t, routes{"GET /v1/status": labNode()})
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
	await("timeslice")
	press("t")
	await("geology")
	press("l")
	await("vision-k8qg")
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
