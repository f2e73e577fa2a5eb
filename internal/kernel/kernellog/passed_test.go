package kernellog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Only the kernel's device counts as the log, whatever else is standard input.
func TestPassedLog(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "kmsg"))
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{file, null, r, w} {
		if got := passed(int(f.Fd())); got != nil {
			t.Errorf("%s counts as the kernel's log", f.Name())
		}
		f.Close()
	}
	if got := passed(1 << 20); got != nil {
		t.Error("a descriptor that is not open counts as the kernel's log")
	}
}

// The log that was opened by another process is followed: it blocks, and the descriptor stays open.
func TestPassedLogIsFollowed(t *testing.T) {
	device, err := os.Open("/dev/kmsg")
	if err != nil {
		t.Skipf("needs to read /dev/kmsg: %v", err)
	}
	defer device.Close()
	log := passed(int(device.Fd()))
	if log == nil {
		t.Fatal("the kernel's log is not found")
	}
	b := make([]byte, maxRecord)
	for {
		if _, err := log.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		n, err := log.Read(b)
		if errors.Is(err, unix.EPIPE) {
			continue // The kernel wrote so much meanwhile that the first record is another.
		}
		if err != nil || n == 0 {
			t.Fatalf("the first record has %d bytes: %v", n, err)
		}
		break
	}
	// The end of a context ends a read that waits for the next record.
	if _, err := log.Seek(0, 2); err != nil {
		t.Fatal(err)
	}
	if err := log.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatalf("a read of it cannot be ended: %v", err)
	}
	if _, err := log.Read(b); !os.IsTimeout(err) {
		t.Errorf("a read ends with %v", err)
	}
	log.Close()
	if passed(int(device.Fd())) == nil {
		t.Error("the descriptor was closed with its duplicate")
	}
}
