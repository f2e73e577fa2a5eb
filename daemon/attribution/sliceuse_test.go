package attribution

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/isolation"
)

func TestRates(t *testing.T) {
	var r rates
	began := time.Now()
	for i, c := range []struct {
		at, used time.Duration
		want     float64
	}{
		{0, 10 * time.Second, 0},                                         // nothing to compare with
		{500 * time.Millisecond, 11 * time.Second, 0},                    // too close
		{2 * time.Second, 14 * time.Second, 200},                         // since the first
		{2*time.Second + time.Millisecond, 20 * time.Second, 200},        // too close: what is known
		{12 * time.Second, 14 * time.Second, 0},                          // idle
		{13 * time.Second, time.Second, 0},                               // another slice of that name
		{14 * time.Second, 1500 * time.Millisecond, 50},                  //
		{14*time.Second + rateMaxInterval + time.Second, time.Hour, 0},   // too long ago
		{16*time.Second + rateMaxInterval, time.Hour + time.Second, 100}, //
	} {
		if got := r.record("/a", c.used, began.Add(c.at)); got != c.want {
			t.Errorf("%d: at %s with %s used it is %v, want %v", i, c.at, c.used, got, c.want)
		}
	}
	if got := r.record("/b", time.Hour, began); got != 0 {
		t.Errorf("a slice that was not recorded has the rate %v", got)
	}
}

// A device that is open although the slice does not allow it does not prevent its closing.
func TestGrantedKeepsAllowedDevices(t *testing.T) {
	node := func(minor uint32) cgroup.DeviceRule {
		return cgroup.DeviceRule{Type: 'c', Major: 195, Minor: minor, Access: "rw"}
	}
	s := &cgroup.SliceState{Closed: true, Devices: []cgroup.DeviceRule{node(0), node(1)}}
	if diff := cmp.Diff([]cgroup.DeviceRule{node(1)}, granted([]cgroup.DeviceRule{node(1), node(2)}, s)); diff != "" {
		t.Error(diff)
	}
}

// A device that is known to be open is in use, also when a process of the slice cannot be read: its closing disturbs who has it open.
func TestOpenDevicesOfASliceThatIsNotReadWhole(t *testing.T) {
	full, err := os.Open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	other := 1 // An ordinary user may not read it.
	if os.Geteuid() == 0 {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // It was killed.
		})
		other = cmd.Process.Pid
	}
	h := cgroup.Hierarchy{Mount: t.TempDir()}
	procs := fmt.Sprintf("%d\n%d\n", os.Getpid(), other)
	if err := os.WriteFile(filepath.Join(h.Mount, "cgroup.procs"), []byte(procs), 0o600); err != nil {
		t.Fatal(err)
	}
	follow := cgroup.NewProcesses("a test")
	attr := &Attribution{
		Reporter:    report.NewReporter(slog.New(slog.DiscardHandler), time.Now),
		Port:        follow,
		Follow:      follow,
		Attachments: cgroup.NewAttachments(cgroup.AttachmentsOptions{Mount: h.Mount}),
	}
	node := cgroup.DeviceRule{Type: 'c', Major: 1, Minor: 7, Access: "rw", Name: "/dev/full"}
	s := &cgroup.SliceState{Closed: true, Devices: []cgroup.DeviceRule{node}}
	done := make(chan error, 1)
	go func() {
		err := withoutTracing()
		if err == nil {
			if _, unread := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", other)); errors.Is(unread, fs.ErrPermission) {
				if diff := cmp.Diff([]cgroup.DeviceRule{node}, attr.useOf(h, s, isolation.Use{}).Devices); diff != "" {
					t.Error(diff)
				}
			} else {
				err = errReadable
			}
		}
		done <- err
	}()
	switch err := <-done; {
	case errors.Is(err, errReadable):
		t.Skipf("needs a process whose descriptors this user may not read: pid %d lets it", other)
	case err != nil:
		t.Fatal(err)
	}
}

var errReadable = errors.New("all is readable")

// withoutTracing takes from this thread the right to follow the descriptors of other processes. The thread ends with the goroutine.
func withoutTracing() error {
	runtime.LockOSThread()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&h, &caps[0]); err != nil {
		return err
	}
	caps[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	return unix.Capset(&h, &caps[0])
}
