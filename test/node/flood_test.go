package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/flood"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/hostile"
)

const (
	gidRed = 471204
	// The limits under a flood. It has the lowest priority for the CPU, but each of its requests makes the daemon compute, and
	// other tests may run at the same time: docs/security.md has what was measured alone.
	mostRunUnderFlood    = 10 * time.Second
	mostStopUnderFlood   = 15 * time.Second // with the start of the command that stops
	mostMemoryUnderFlood = 128 << 20        // bytes of the daemon
)

const floodSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: timeslice}
tenants:
  - name: red
    members: {groups: [red]}
    grants: [{name: whole, timeslice: {share: 10%, gpu_memory: 1GiB}, gpus: {index: 2}, max_leases: 1}]
  - name: blue
    members: {groups: [blue]}
    grants: [{name: part, timeslice: {share: 30%, gpu_memory: 1GiB}, gpus: {index: 3}}]
`

// A flood of everything by 50 users at once delays the run and the stop of another user, but does not prevent them, and it does
// not fill the memory of the daemon.
func TestFloodByManyUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	users, runs, stops := 50, 20, 3
	if enumeration.Sampled() { // It takes all CPUs from what runs next to it.
		users, runs, stops = 8, 4, 1
	}
	n := inDirectory(t)
	lines, red := []string{
		"gpushare-admin:*:471201:",
		"gpushare:*:471202:",
		"blue:*:471203:another",
		"another:*:471214:471214::/:/bin/sh",
	}, []string(nil)
	for i := range users {
		red = append(red, fmt.Sprintf("red%d", i))
		lines = append(lines, fmt.Sprintf("red%d:*:%d:%d::/:/bin/sh", i, 480000+i, 480000+i))
	}
	directory(t, n, answers(append(lines, fmt.Sprintf("red:*:%d:%s", gidRed, strings.Join(red, ",")))...))
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, floodSpec)
	b := &attackFixture{Node: n, who: callers()}
	before := b.timeRuns(t, 5)
	mixed, ok := hostile.Find(flood.Mixed)
	if !ok {
		t.Fatal("there is no mixed flood")
	}
	var jobs []*harness.Job
	for i := range users {
		who := person{uid: 480000 + i, gid: 480000 + i, groups: []string{strconv.Itoa(gidRed)}}
		jobs = append(jobs, b.hostile(t, who, &mixed, "nice", "-n", "19"))
	}
	for _, job := range jobs {
		if err := job.AwaitLine(soon(t), "ready"); err != nil {
			t.Fatal(err)
		}
	}
	during := b.timeRuns(t, runs)
	stopped := b.timeStops(t, stops)
	for _, job := range jobs {
		endHostile(t, job)
	}
	memory := memoryPeak(t, n.DaemonPID())
	t.Logf(
		"without the flood by %d users a run takes %v, and with it %v, and %v at most; a stop takes %v at most; the daemon had %d MiB at most",
		users,
		median(before),
		median(during),
		slices.Max(during),
		slices.Max(stopped),
		memory>>20,
	)
	if most := slices.Max(during); most > mostRunUnderFlood {
		t.Errorf("a run takes %v, want at most %v", most, mostRunUnderFlood)
	}
	if most := slices.Max(stopped); most > mostStopUnderFlood {
		t.Errorf("a stop takes %v, want at most %v", most, mostStopUnderFlood)
	}
	if memory > mostMemoryUnderFlood {
		t.Errorf("the daemon had %d bytes, want at most %d", memory, mostMemoryUnderFlood)
	}
}

// timeRuns runs commands of another user one after the other, and returns how long they took.
func (b *attackFixture) timeRuns(t *testing.T, runs int) []time.Duration {
	t.Helper()
	var all []time.Duration
	for range runs {
		cmd := b.as(t, anothers, "run", "-q", "-t", "blue", "--", "true")
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("run: %v: %s", err, out)
		}
		all = append(all, time.Since(began))
	}
	return all
}

// timeStops starts and stops leases of another user.
func (b *attackFixture) timeStops(t *testing.T, stops int) []time.Duration {
	t.Helper()
	var all []time.Duration
	for range stops {
		job, err := b.Spawn(b.as(t, anothers, "run", "-q", "-t", "blue", "--", "sh", "-c", `echo "lease=$GPUSHARE_LEASE."; exec sleep 600`))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		if err := job.AwaitLine(soon(t), "."); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if out, err := b.as(t, anothers, "lease", "stop", leaseOf(job)).CombinedOutput(); err != nil {
			t.Fatalf("stop: %v: %s", err, out)
		}
		all = append(all, time.Since(began))
	}
	return all
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// memoryPeak is the largest resident set of a process so far, in bytes.
func memoryPeak(t *testing.T, pid int) uint64 { t.Helper(); return memoryOf(t, pid, "VmHWM:") }

// memoryOf is a size from the status of a process, in bytes.
func memoryOf(t *testing.T, pid int, key string) uint64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			kib, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("there is no %s", key)
	return 0
}
