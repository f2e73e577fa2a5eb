//go:build faultpoint

package faultpoint_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/internal/faultpoint"
)

// TestKill runs this test binary again as the process to kill.
func TestKill(t *testing.T) {
	if os.Getenv("GPUSHARE_FAULT") != "" {
		faultpoint.Hit("other.place")
		faultpoint.Hit("a.first")
		faultpoint.Hit("a.second")
		return
	}
	stamp := filepath.Join(t.TempDir(), "stamp")
	run := func(fault string) (signal syscall.Signal) {
		c := exec.Command(os.Args[0], "-test.run=^TestKill$")
		c.Env = append(os.Environ(), "GPUSHARE_FAULT="+fault, "GPUSHARE_FAULT_STAMP="+stamp)
		c.Run()
		return c.ProcessState.Sys().(syscall.WaitStatus).Signal()
	}
	if got := run("a.*:kill@2"); got != syscall.SIGKILL {
		t.Errorf("the second place was passed with %v", got)
	}
	if place, _ := os.ReadFile(stamp); string(place) != "a.second\n" {
		t.Errorf("the stamp contains %q", place)
	}
	if got := run("a.*:kill@2"); got == syscall.SIGKILL {
		t.Error("the stamp did not save the second run")
	}
	os.Remove(stamp)
	if got := run("b.*:kill"); got == syscall.SIGKILL {
		t.Error("a place of another name was fatal")
	}
}
