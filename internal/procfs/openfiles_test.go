package procfs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestOpenersFindsWhoHoldsAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "held-by-another")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	zero, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	var got []OpenFile
	if _, err := WalkOpenFiles(t.Context(), "held-by-another", func(o OpenFile) { got = append(got, o) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].PID != cmd.Process.Pid || got[0].Name != file || got[0].Rdev != 0 || got[0].Ino == 0 {
		t.Errorf("found %+v, want pid %d with %s", got, cmd.Process.Pid, file)
	}
	number := uint64(0)
	if _, err := WalkOpenFiles(t.Context(), "/dev/null", func(o OpenFile) {
		if o.PID == os.Getpid() {
			number = o.Rdev
		}
	}); err != nil || number == 0 {
		t.Errorf("a device has number %d: %v", number, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := WalkOpenFiles(over, "/", func(OpenFile) { t.Error("it went on after the end") }); err == nil {
		t.Error("it says that it looked at all, and was stopped")
	}
}
