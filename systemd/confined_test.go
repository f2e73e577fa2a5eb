package systemd

import (
	"bufio"
	"io"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// A confined program gets its socket as standard input, and its unit has no capability, no network and no files to change.
func TestConfinedProgram(t *testing.T) {
	a, f := openReal(t)
	local, remote := startConn(t)
	s := Confined{
		Name:         "gpushare-front-1",
		Description:  "a test",
		Argv:         []string{"/bin/sh", "-c", "read word; echo $word >&0; read word"},
		Env:          []string{"A=b"},
		Slice:        "gpushared.slice",
		Stdin:        remote,
		UID:          1001,
		GID:          1002,
		Capabilities: 1 << 5,
		Memory:       1 << 28,
		Tasks:        9,
	}
	st, err := a.StartConfined(within(t, 20*time.Second), s)
	if err != nil {
		t.Fatal(err)
	}
	remote.Close()
	if _, err := procfs.Start(st.MainPID); err != nil || st.Cgroup == "" {
		t.Errorf("pid %d in %q does not run: %v", st.MainPID, st.Cgroup, err)
	}
	if _, err := io.WriteString(local, "received\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(local).ReadString('\n'); err != nil || line != "received\n" {
		t.Errorf("it sends %q, %v", line, err)
	}
	f.set(func() {
		u := f.units["gpushare-front-1.service"]
		for name, want := range map[string]any{
			"User": "1001", "Group": "1002", "CapabilityBoundingSet": uint64(1 << 5), "NoNewPrivileges": true, "PrivateNetwork": true, "ProtectSystem": "strict", "MemoryMax": uint64(1 << 28),
			"TasksMax": uint64(9), "Slice": "gpushared.slice",
		} {
			if got := u.props[name].Value(); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
	if _, err := a.StartConfined(within(t, 20*time.Second), s); err == nil {
		t.Error("a name was used twice")
	}
}
