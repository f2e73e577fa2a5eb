package detached

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// A process has any bytes in its environment.
func FuzzEnvironment(f *testing.F) {
	f.Add([]byte("A=1\x00TOKEN=x\x00"), "TOKEN=x")
	f.Add([]byte("ATOKEN=x"), "TOKEN=x")
	f.Fuzz(func(t *testing.T, b []byte, entry string) {
		if containsEntry(b, entry) && !bytes.Contains(b, []byte(entry)) {
			t.Errorf("%q has %q", b, entry)
		}
	})
}

// Servers of MPS write what their clients send, to a log whose end is shown.
func FuzzLog(f *testing.F) {
	f.Add([]byte("[2026-01-01 00:00:00.000 Control 1] Starting\n[2026-01-01 00:00:00.001 Server 2] Received\n"), 1)
	f.Add(bytes.Repeat([]byte("x"), 3*lineLength), 2)
	d := &Services{Dir: f.TempDir()}
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if n < 1 || n > 1000 {
			return
		}
		if err := os.WriteFile(d.logPath("s"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		lines := d.LastLines(t.Context(), "s", n)
		if len(lines) > n || slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "\n") }) ||
			!strings.HasSuffix(strings.TrimSuffix(string(b), "\n"), strings.Join(lines, "\n")) {
			t.Errorf("the last %d lines of %q are %q", n, b, lines)
		}
	})
}
