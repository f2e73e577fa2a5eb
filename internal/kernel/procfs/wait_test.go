package procfs

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestParseMount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, line string
		want       Mount
		ok         bool
	}{
		{"without optional fields", "42 27 0:41 / /tmp/ff rw,relatime - fuse x rw,user_id=65534", Mount{42, 0, 41, "/tmp/ff", "fuse", "x"}, true},
		{"with them", "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw", Mount{36, 98, 0, "/mnt2", "ext3", "/dev/root"}, true},
		{"with escapes", `36 35 0:50 / /a\040b\134c rw - nfs4 server:/x\011y rw`, Mount{36, 0, 50, `/a b\c`, "nfs4", "server:/x\ty"}, true},
		{"cut off", "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1", Mount{}, false},
		{"without a dash", "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 ext3 /dev/root rw", Mount{}, false},
		{"no numbers", "x 35 y:z /mnt1 /mnt2 rw - ext3 /dev/root rw", Mount{}, false},
	} {
		got, ok := parseMount(c.line)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v; want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestMountHas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		point, path string
		want        bool
	}{
		{"/", "/a", true}, {"/", "a", false}, {"/a", "/a", true}, {"/a", "/a/b", true}, {"/a", "/ab", false}, {"/a/b", "/a", false}, {"/a", "", false},
	} {
		if got := (Mount{Point: c.point}).Has(c.path); got != c.want {
			t.Errorf("%q on %q: %v", c.path, c.point, got)
		}
	}
}

// A thread that waits in a call is described by the call, its file and the mount that the file is on.
func TestReadWait(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat", "fifo")
	cmd.Dir = filepath.Dir(fifo)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // A signal ends it.
	// It opens the named pipe first, which waits for a writer, and then reads it.
	await := func(calls ...string) Wait {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			w := ReadWait(cmd.Process.Pid, cmd.Process.Pid)
			for _, call := range calls {
				if w.Call == call && w.File == fifo {
					return w
				}
			}
			if time.Now().After(end) {
				t.Fatalf("it waits in %+v", w)
			}
		}
	}
	await("openat", "open")
	out, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	await("read")
	u := ReadUsedFiles(cmd.Process.Pid)
	found := false
	if err := WalkMounts(cmd.Process.Pid, func(m Mount) { found = found || u.Mounts[m.ID] && m.Has(fifo) }); err != nil || !found {
		t.Errorf("the mount of its open file is not found: %v, %+v", err, u)
	}
	if len(u.Devices) == 0 {
		t.Error("nothing is mapped")
	}
}

// A reading that does not return is given up, and the process is not read again before it has returned.
func TestWithin(t *testing.T) {
	t.Parallel()
	in, out := io.Pipe()
	const pid = -7 // of no process, so that no other test reads it
	returned := make(chan struct{})
	if Within(pid, func() { _, _ = in.Read(make([]byte, 1)); close(returned) }) {
		t.Error("a reading that waits has returned")
	}
	if Within(pid, func() { t.Error("it was read again") }) {
		t.Error("it was read while a reading waits")
	}
	out.Close()
	<-returned
	for end := time.Now().Add(20 * time.Second); !Within(pid, func() {}); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not read after the reading has returned")
		}
	}
}

// Readings that one user makes wait do not keep those of others.
func TestWithinIsBoundedPerOwner(t *testing.T) {
	t.Parallel()
	var g giveUps
	end := make(chan struct{})
	var returned sync.WaitGroup
	for pid := range mostOfOwner {
		returned.Add(1)
		if g.within(pid, 1000, func() { <-end; returned.Done() }) {
			t.Error("a reading that waits has returned")
		}
	}
	if g.within(100, 1000, func() {}) {
		t.Error("a user has more readings that wait")
	}
	for owner := range uint32(10) {
		// One that is not scheduled in time is tried again.
		for deadline := time.Now().Add(20 * time.Second); !g.within(200+int(owner), owner, func() {}); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no process of uid %d is read", owner)
			}
		}
	}
	close(end)
	returned.Wait()
	for deadline := time.Now().Add(20 * time.Second); !g.within(100, 1000, func() {}); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the user's processes are not read after the readings have returned")
		}
	}
}
