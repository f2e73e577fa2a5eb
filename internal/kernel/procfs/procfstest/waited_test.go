package procfstest

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Two processes that may use one processor only wait for each other.
func TestWaited(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("the kernel does not count it: ", err)
	}
	var set, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	pids := [2]int{}
	for i := range pids {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "read x; while :; do :; done")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		pids[i] = cmd.Process.Pid
		if err := unix.SchedSetaffinity(pids[i], &one); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
	}
	for until := time.Now().Add(time.Minute); Waited(pids[0]) < 100*time.Millisecond || Waited(pids[1]) < 100*time.Millisecond; block(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("they have waited %v and %v", Waited(pids[0]), Waited(pids[1]))
		}
	}
	if w := Waited(os.Getpid()); w < 0 {
		t.Errorf("this process has waited %v", w)
	}
}
