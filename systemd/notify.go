package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// Notifier reports the daemon's state to the service manager (sd_notify(3)). Without a service manager, and as the zero
// value, its methods do nothing and succeed.
type Notifier struct {
	socket   string
	watchdog time.Duration
}

// NewNotifier reads the socket from the environment and removes it from there, so that no process that the daemon starts
// can send messages in its name. The client library reads it again for each message, so it only reads the watchdog here.
func NewNotifier() (Notifier, error) {
	n := Notifier{socket: os.Getenv("NOTIFY_SOCKET")}
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return Notifier{}, fmt.Errorf("cannot unset NOTIFY_SOCKET: %w", err)
	}
	if n.socket != "" && n.socket[0] != '/' && n.socket[0] != '@' {
		return Notifier{}, fmt.Errorf("cannot use NOTIFY_SOCKET %q: neither a path nor an abstract name", n.socket)
	}
	var err error
	if n.watchdog, err = sd.SdWatchdogEnabled(true); err != nil {
		return Notifier{}, fmt.Errorf("cannot use the watchdog: %w", err)
	}
	return n, nil
}

// Enabled reports whether there is a service manager to notify.
func (n Notifier) Enabled() bool { return n.socket != "" }

// WatchdogInterval is how often Watchdog should be called: half of the service manager's timeout. 0 means that there is no
// watchdog.
func (n Notifier) WatchdogInterval() time.Duration { return n.watchdog / 2 }

// Ready reports that the daemon has started, or has finished reloading.
func (n Notifier) Ready() error { return n.send("READY=1") }

// Status reports in one line, for people, what the daemon does.
func (n Notifier) Status(text string) error {
	return n.send("STATUS=" + strings.ReplaceAll(text, "\n", " "))
}

// Watchdog reports that the daemon works.
func (n Notifier) Watchdog() error { return n.send("WATCHDOG=1") }

// Stopping reports that the daemon stops.
func (n Notifier) Stopping() error { return n.send("STOPPING=1") }

func (n Notifier) send(state string) error {
	if n.socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("cannot notify the service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("cannot notify the service manager: %w", err)
	}
	return nil
}
