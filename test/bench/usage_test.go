package main

import (
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// The CPU time of a program has no steps of 10 ms, and a program that waits wakes up for it: neither counts the time that it waits.
func TestUseOfAProgram(t *testing.T) {
	cmd := exec.Command("sh", "-c", "while read x; do i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done; echo; done")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() { in.Close(); _ = cmd.Wait() })
	defer end()
	work := func() {
		t.Helper()
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	work()
	before, err := usageOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 5
	after := before
	for i := range rounds {
		work()
		// It waits for the next line now: the kernel counts that when it lets go of its core.
		for deadline := time.Now().Add(30 * time.Second); after.wakes <= before.wakes+uint64(i); {
			if after, err = usageOf(cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Fatalf("it woke up %d times in %d rounds", after.wakes-before.wakes, i+1)
			}
		}
	}
	if n := after.wakes - before.wakes; n > 10*rounds { // It may wait for more, such as a page.
		t.Errorf("it woke up %d times in %d rounds", n, rounds)
	}
	spent := after.cpu - before.cpu
	if spent <= 0 || spent%(10*time.Millisecond) == 0 { // In steps of the kernel's clock it would be.
		t.Errorf("it needed %v", spent)
	}
	u := used{elapsed: 2 * time.Second, programs: map[string]usage{"a": {time.Second, 30}, "b": {100 * time.Millisecond, 0}}}
	if u.percent("a") != 50 || u.perSecond("a") != 15 || u.all() != 55 {
		t.Errorf("%v %%, %v/s, all %v %%", u.percent("a"), u.perSecond("a"), u.all())
	}
	end()
	if _, err := cpuTime(cmd.Process.Pid); err == nil {
		t.Error("a process that has ended has a CPU time")
	}
	if own, err := cpuTime(os.Getpid()); err != nil || own <= 0 {
		t.Errorf("%v, %v", own, err)
	}
}
