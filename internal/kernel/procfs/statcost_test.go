//go:build !race

package procfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadCostsLittle counts what one reading of a process costs: the daemon reads some for each lease that starts, and those of its leases
// each second. The race detector drops kept buffers at random.
func TestReadCostsLittle(t *testing.T) {
	const times = 100
	me := os.Getpid()
	read := func() {
		if _, err := Read(me); err != nil {
			t.Error(err)
		}
	}
	if n := testing.AllocsPerRun(times, read); n > 1 { // the name
		t.Errorf("%v allocations, want one", n)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := reads(t)
	for range times {
		read()
	}
	if n := reads(t) - before; n > times+1 { // and that of the counter
		t.Errorf("%d readings of a process make %d calls of read(2)", times, n)
	}
}

// reads is how often this thread has called read(2).
func reads(t *testing.T) (n int) {
	t.Helper()
	b := make([]byte, 1024)
	f, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/io", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
		t.Skipf("needs a kernel that counts the calls of a thread, and shows its io: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	size, err := unix.Read(f, b)
	if err = errors.Join(err, unix.Close(f)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b[:size])) {
		if _, err := fmt.Sscanf(line, "syscr: %d", &n); err == nil {
			return n
		}
	}
	t.Skip("needs a kernel that counts the calls of a thread, in syscr of its io")
	return 0
}
