package monitor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The thread whose slack is set is the one that wakes up while the program computes and calls nothing, and no other has the slack.
func TestRelax(t *testing.T) {
	if err := Relax(); errors.Is(err, fs.ErrPermission) {
		t.Skip("to set the slack of another thread needs CAP_SYS_NICE")
	} else if err != nil {
		t.Fatal(err)
	}
	monitor, err := thread()
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tasks {
		b, err := os.ReadFile("/proc/" + e.Name() + "/timerslack_ns")
		if err != nil {
			continue // It has ended.
		}
		want := e.Name() == strconv.Itoa(monitor)
		if got := strings.TrimSpace(string(b)) == strconv.Itoa(int(Slack)); got != want {
			t.Errorf("thread %s has a slack of %s ns; only the monitor, %d, has that of %s", e.Name(), b, monitor, Slack)
		}
	}
	before := wakes(t, monitor)
	for end := time.Now().Add(time.Minute); wakes(t, monitor) < before+10; {
		if time.Now().After(end) {
			t.Fatalf("thread %d woke up %d times while the program was busy", monitor, wakes(t, monitor)-before)
		}
		for n, until := 0, time.Now().Add(20*time.Millisecond); time.Now().Before(until); n++ {
			_ = n // Busy without a system call.
		}
	}
}

// wakes is how often a thread has waited.
func wakes(t *testing.T, tid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", tid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "_ctxt_switches:") // The first are those of threads that wait.
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The daemon's unit and the worker have the value of this package.
func TestSlackIsTheSameEverywhere(t *testing.T) {
	for file, want := range map[string]string{
		"../../packaging/systemd/gpushared.service": fmt.Sprintf("\nTimerSlackNSec=%dus\n", Slack.Microseconds()),
		"../../cmd/gpushare-nvml/slack.c":           fmt.Sprintf("PR_SET_TIMERSLACK, %dUL,", Slack.Nanoseconds()),
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), want) {
			t.Errorf("%s does not have %q", file, want)
		}
	}
}

// In a program that the unit gave the slack, nothing is left to set: it needs no permission, and a profile of AppArmor denies nothing.
func TestInheritedSlackIsEnough(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0) }()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(Slack), 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	monitor, err := thread()
	if err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("/proc/%d/timerslack_ns", monitor)
	was, err := os.ReadFile(file)
	if err != nil {
		t.Skip("to read the slack of another thread needs CAP_SYS_NICE: ", err)
	}
	const other = "123456"
	if err := os.WriteFile(file, []byte(other), 0); err != nil {
		t.Skip("to set the slack of another thread needs CAP_SYS_NICE: ", err)
	}
	defer func() { _ = os.WriteFile(file, was, 0) }()
	if err := Relax(); err != nil {
		t.Errorf("Relax: %v", err)
	}
	if is, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(is)) != other {
		t.Errorf("the monitor has a slack of %s ns, %v; it was not to be set", is, err)
	}
}
