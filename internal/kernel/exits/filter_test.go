package exits

import (
	"errors"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// The kernel drops the ends of other processes: without one to follow the listener is not woken, however many end.
func TestEndsOfOtherProcessesAreDropped(t *testing.T) {
	for _, c := range []struct {
		name  string
		pids  func(own int) []int
		woken bool
	}{
		{"none is followed", func(int) []int { return []int{} }, false},
		{"others are followed", func(int) []int { return others(450) }, false},
		{"all are followed", func(int) []int { return nil }, true},
		{"it alone", func(own int) []int { return []int{own} }, true},
		{"the first of a full block", func(own int) []int { return append([]int{own}, others(199)...) }, true},
		{"the last of a full block", func(own int) []int { return append(others(199), own) }, true},
		{"the first of the next block", func(own int) []int { return append(others(200), own) }, true},
		{"the last of many", func(own int) []int { return append(others(1999), own) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := Listen()
			if errors.Is(err, unix.EPERM) {
				t.Skip("listening to the ends of processes needs root: ", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			cmd, end := waiting(t)
			raw, err := l.socket.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if err := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter(c.pids(cmd.Process.Pid)))
			}); err != nil {
				t.Fatal(err)
			}
			if errors.Is(err, unix.ENOMEM) {
				t.Skip("net.core.optmem_max of this host is too small for this filter: ", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			end()
			if err := exec.Command("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do (exit 0) & done; wait").Run(); err != nil {
				t.Fatal(err)
			}
			own := 0
			buf := make([]byte, 4096)
			if err := raw.Control(func(fd uintptr) {
				for {
					n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
					if err != nil {
						return
					}
					if pid, _, ok := parse(buf[:n]); ok && pid == cmd.Process.Pid {
						own++
					} else if ok && c.pids(cmd.Process.Pid) != nil {
						t.Errorf("the end of pid %d is reported", pid)
					}
				}
			}); err != nil {
				t.Fatal(err)
			}
			if (own == 1) != c.woken || own > 1 {
				t.Errorf("its end is reported %d times", own)
			}
		})
	}
}

// others returns pids that are not those of a process: above every pid of a host.
func others(n int) []int {
	pids := make([]int, n)
	for i := range pids {
		pids[i] = 1<<23 + i
	}
	return pids
}

// waiting starts a process that waits until end is called.
func waiting(t testing.TB) (cmd *exec.Cmd, end func()) {
	t.Helper()
	cmd = exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, func() {
		_ = in.Close() // Then it ends.
		_ = cmd.Wait()
	}
}

// BenchmarkForeignEnds counts what the listener receives while other programs start 1 000 processes, with one to follow.
func BenchmarkForeignEnds(b *testing.B) {
	l, err := Listen()
	if err != nil {
		b.Skip("listening to the ends of processes needs root: ", err)
	}
	defer l.Close()
	cmd, end := waiting(b)
	defer end()
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	l.Follow(cmd.Process.Pid, start)
	defer l.Forget(cmd.Process.Pid, start)
	received, buf := 0, make([]byte, 4096)
	for b.Loop() {
		if err := exec.Command(
			"sh", "-c", "i=0; while [ $i -lt "+strconv.Itoa(1000)+" ]; do (exit 0); i=$((i+1)); done",
		).Run(); err != nil {
			b.Fatal(err)
		}
		raw, err := l.socket.SyscallConn()
		if err != nil {
			b.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			for {
				if _, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err != nil {
					return
				}
				received++
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(received)/float64(b.N), "wake-ups/op")
}
