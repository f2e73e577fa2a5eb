package procfs_test

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// A process has another image after it has executed a program, also the same one, and the same one until then.
func TestImage(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `echo a; read x; exec sh -c 'echo b; read x'`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var seen []procfs.Image
	for range 2 {
		if line, err := lines.ReadString('\n'); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		first, err := procfs.ReadImage(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := procfs.ReadImage(cmd.Process.Pid); err != nil || again != first {
			t.Errorf("%+v is %+v a moment later: %v", first, again, err)
		}
		seen = append(seen, first)
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	random, err := os.ReadFile("/proc/sys/kernel/randomize_va_space")
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(random)) != "0" && seen[0] == seen[1] {
		t.Errorf("both programs have %+v", seen[0])
	}
	if m, err := procfs.ReadImage(cmd.Process.Pid); err == nil {
		t.Errorf("a process that has ended has %+v", m)
	}
}

// What a process writes is counted.
func TestWritten(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	before, err := procfs.Written(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(strings.Repeat("x", 1000)); err != nil {
		t.Fatal(err)
	}
	if after, err := procfs.Written(os.Getpid()); err != nil || after < before+1000 {
		t.Errorf("%d bytes before, and %d after 1000 more: %v", before, after, err)
	}
}
