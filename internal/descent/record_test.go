package descent

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestFindMount(t *testing.T) {
	const before = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	for _, c := range []struct{ name, text, want string }{
		{"none", before, ""},
		{"another name", before + "31 24 0:27 / /a rw - cgroup cgroup rw,xattr,name=systemd\n", ""},
		{"a longer name", before + "31 24 0:27 / /a rw - cgroup cgroup rw,name=gpushare2\n", ""},
		{"a part of it", before + "31 24 0:27 /l1 /a rw - cgroup cgroup rw,name=gpushare\n", ""},
		{"a tmpfs with the option", before + "31 24 0:27 / /a rw - tmpfs tmpfs rw,name=gpushare\n", ""},
		{"it", before + "31 24 0:27 / /run/a rw,nosuid - cgroup cgroup rw,name=gpushare\n", "/run/a"},
		{"no fields", "x\n - cgroup\n", ""},
	} {
		if got, ok := findMount(c.text); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func open(t *testing.T) *Record {
	t.Helper()
	r, err := Open(fmt.Sprint("test-", os.Getpid(), "-", strings.ToLower(t.Name())))
	if errors.Is(err, fs.ErrPermission) {
		t.Skip("needs root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		leases, err := r.Leases()
		for _, id := range leases {
			err = errors.Join(err, r.Release(id))
		}
		if err = errors.Join(err, r.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// shell starts a script that prints a line with the pid of its last descendant and then waits for its input to end.
func shell(t *testing.T, script string) (cmd *exec.Cmd, start func() int) {
	t.Helper()
	cmd = exec.Command("sh", "-c", "read -r x; "+script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // It may have ended.
	return cmd, func() (pid int) {
		t.Helper()
		if _, err := in.Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fscan(bufio.NewReader(out), &pid); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // It may have ended.
		return pid
	}
}

// A descendant is recorded although its parents have ended and it is in a session of its own.
func TestDescendantsRemainRecorded(t *testing.T) {
	r := open(t)
	cmd, start := shell(t, "setsid sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 60 >/dev/null\" & '; sleep 60")
	undo, err := r.Add("one", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	grandchild := start()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // It was killed.
	if pids, err := r.Processes("one"); err != nil || !slices.Contains(pids, grandchild) || slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("%d and not %d is recorded: %v, %v", grandchild, cmd.Process.Pid, pids, err)
	}
	if removed, err := r.Remove("one"); removed || err != nil {
		t.Errorf("it was removed with a process: %v, %v", removed, err)
	}
	// Another daemon with the same name reads the same record.
	again, err := Open(strings.TrimPrefix(r.dir, r.top+"/"))
	if err != nil {
		t.Fatal(err)
	}
	if pids, err := again.Processes("one"); err != nil || !slices.Contains(pids, grandchild) {
		t.Errorf("%v, %v", pids, err)
	}
	if ids, err := again.Leases(); err != nil || !slices.Equal(ids, []string{"one"}) {
		t.Errorf("%v, %v", ids, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	if ids, err := r.Leases(); err != nil || len(ids) > 0 {
		t.Errorf("undone: %v, %v", ids, err)
	}
}

// A process of a lease that gets another lease is recorded for that one, and for the first again if that fails.
func TestOneLeaseInAnother(t *testing.T) {
	r := open(t)
	cmd, _ := shell(t, "sleep 60")
	pid := cmd.Process.Pid
	recorded := func(id string, want bool) {
		t.Helper()
		if pids, err := r.Processes(id); err != nil || slices.Contains(pids, pid) != want {
			t.Errorf("%s: %v, %v", id, pids, err)
		}
	}
	if _, err := r.Add("outer", pid); err != nil {
		t.Fatal(err)
	}
	undo, err := r.Add("inner", pid)
	if err != nil {
		t.Fatal(err)
	}
	recorded("outer", false)
	recorded("inner", true)
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	recorded("outer", true)
	if removed, err := r.Remove("inner"); !removed || err != nil {
		t.Errorf("%v, %v", removed, err)
	}
}

func TestAddAProcessThatHasEnded(t *testing.T) {
	r := open(t)
	if _, err := r.Add("one", 1<<30); err == nil {
		t.Error("a process that does not exist is recorded")
	}
	if pids, err := r.Processes("one"); err != nil || len(pids) > 0 {
		t.Errorf("%v, %v", pids, err)
	}
}

func TestNoRecord(t *testing.T) {
	var r *Record
	undo, err := r.Add("one", 1)
	if err != nil || undo() != nil || r.Release("one") != nil || r.Close() != nil {
		t.Error("without a record nothing happens")
	}
	if pids, err := r.Processes("one"); err != nil || pids != nil {
		t.Error("without a record nothing is known")
	}
}

// BenchmarkProcesses measures what a pass reads for one lease of 50 processes.
func BenchmarkProcesses(b *testing.B) {
	r, err := Open(fmt.Sprint("bench-", os.Getpid()))
	if err != nil {
		b.Skip("needs root: ", err)
	}
	cmd := exec.Command("sh", "-c", "read -r x; for i in $(seq 49); do sleep 60 & done; echo; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // It was killed.
		for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
			if removed, _ := r.Remove("one"); removed {
				break
			}
		}
		_ = r.Close() // The result does not depend on it.
	}()
	if _, err := r.Add("one", cmd.Process.Pid); err != nil {
		b.Fatal(err)
	}
	_, _ = in.Write([]byte("x\n"))
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if pids, err := r.Processes("one"); err != nil || len(pids) != 50 {
			b.Fatal(len(pids), err)
		}
	}
}
