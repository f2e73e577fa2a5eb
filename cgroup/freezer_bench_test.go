package cgroup

import (
	"io"
	"log/slog"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// BenchmarkFreezer freezes and thaws a scope for a time slice, as a scheduler does. cpu-ns/op is the CPU time of this process.
func BenchmarkFreezer(b *testing.B) {
	tree, dir := newTree(b), b.TempDir()
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // It is killed with its scope.
	start, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := tree.StartScope(b.Context(), train("l-1", Process{PID: cmd.Process.Pid, Start: start})); err != nil {
		b.Fatal(err)
	}
	watchdog := &ThawWatchdog{RunDir: dir, Freezer: tree.freezer, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	ended := make(chan error, 2)
	go func() { ended <- watchdog.Run(b.Context()) }()
	g, err := NewFreezer(tree, FreezerOptions{RunDir: dir})
	if err != nil {
		b.Fatal(err)
	}
	go func() { g.Run(b.Context(), func(err error) { b.Error(err) }); ended <- nil }()
	b.Cleanup(func() { <-ended; <-ended; g.Close() })
	for g.Ready() != nil {
		pause(time.Millisecond)
	}
	cpu := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	slice := time.NewTicker(2 * time.Millisecond) // between two freezes
	defer slice.Stop()
	before := cpu()
	for b.Loop() {
		if err := g.Freeze(b.Context(), "l-1", ForTimeSlice, time.Second); err != nil {
			b.Fatal(err)
		}
		if err := g.Thaw(b.Context(), "l-1", ForTimeSlice); err != nil {
			b.Fatal(err)
		}
		<-slice.C
	}
	b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
}
