package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/cli"
)

// terminal opens a terminal of its own: what is written to tty can be read from screen.
func terminal(t *testing.T) (screen, tty *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	t.Cleanup(func() { tty.Close() })
	return screen, tty
}

func TestColours(t *testing.T) {
	for name, c := range map[string]struct {
		env     []string
		colored bool
	}{
		"on a terminal":  {[]string{"TERM=xterm"}, true},
		"NO_COLOR":       {[]string{"TERM=xterm", "NO_COLOR=1"}, false},
		"NO_COLOR empty": {[]string{"TERM=xterm", "NO_COLOR="}, true},
		"a dumb one":     {[]string{"TERM=dumb"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			screen, tty := terminal(t)
			socket := fakeDaemon(t, routes{"GET /v1/doctor": labDoctor()})
			seen := make(chan string, 1)
			go func() {
				var b bytes.Buffer
				_, _ = io.Copy(&b, screen) // It ends with an error when the other side is closed.
				seen <- b.String()
			}()
			code := cli.Run(
				t.Context(), []string{"doctor"}, append(c.env, "GPUSHARE_SOCKET="+socket),
				cli.Stdio{In: strings.NewReader(""), Out: tty, Err: io.Discard},
			)
			tty.Close()
			got := <-seen
			if code != 6 || !strings.Contains(got, "held") {
				t.Fatalf("exit code %d: %q", code, got)
			}
			if colored := strings.Contains(got, "\x1b[31mfail\x1b[0m"); colored != c.colored {
				t.Errorf("coloured: %v, want %v: %q", colored, c.colored, got)
			}
		})
	}
}
