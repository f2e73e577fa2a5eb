package procfs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestWalkOpenFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "open-elsewhere")
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
	if _, err := WalkOpenFiles(t.Context(), "open-elsewhere", func(o OpenFile) { got = append(got, o) }); err != nil {
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
	if _, err := WalkOpenFiles(over, "/", func(OpenFile) { t.Error("it continued after the end of its context") }); err == nil {
		t.Error("it returned no error, although its context had ended")
	}
}
