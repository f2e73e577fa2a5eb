package cgroup

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A short pause has a slack of its own, and leaves the thread as it was: programs inherit the slack.
func TestShortPauseKeepsTheSlackOfItsThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadSlack()
	defer setSlack(t, before)
	for _, slack := range []uintptr{1, exactSlack, 40_000_000_000} {
		setSlack(t, slack)
		shortPause(pollPause)
		if got := threadSlack(); got != slack {
			t.Errorf("the thread has a slack of %d ns after a pause, and had %d", got, slack)
		}
	}
}

func setSlack(t *testing.T, ns uintptr) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, ns, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
}
