package cli

import (
	"syscall"
	"testing"
)

// The mask is read, and not set for it. No other test runs meanwhile: the test sets it.
func TestUmask(t *testing.T) {
	before := syscall.Umask(0o026)
	defer syscall.Umask(before)
	if got := umask(); got != 0o026 {
		t.Errorf("the mask is %04o", got)
	}
	for status, want := range map[string]int{"Name:\tx\nUmask:\t0077\nState:\tR\n": 0o077, "Umask:\t0000\n": 0, "Name:\tx\n": -1, "Umask:\t9\n": -1, "Umask:\t7777\n": -1} {
		if got, ok := reportedUmask(status); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %04o, %t", status, got, ok)
		}
	}
}
