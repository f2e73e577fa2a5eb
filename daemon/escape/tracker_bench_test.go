package escape

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// manyProcesses returns a host with 10 000 processes in 200 leases and 2 000 others.
func manyProcesses() *fakeHost {
	w := newFakeHost()
	pid := 10
	for lease := range 200 {
		w.spawn(pid, 1)
		w.run(pid, fmt.Sprint("l", lease))
		for i := 1; i < 50; i++ {
			w.spawn(pid+i, pid)
		}
		pid += 50
	}
	for i := range 2000 {
		w.spawn(pid+i, 1)
	}
	return w
}

// BenchmarkTracker measures one pass over 10 000 processes in leases, with no new process and with 100. It counts what is
// read of each process: in the first case nothing.
func BenchmarkTracker(b *testing.B) {
	for _, started := range []int{0, 100} {
		b.Run(fmt.Sprintf("started=%d", started), func(b *testing.B) {
			w, r := manyProcesses(), tracker{}
			first := w.snapshot()
			r.observe(first)
			l, stats, locations := w.snapshot(), 0, 0
			stat, where := l.stat, l.where
			l.stat = func(pid int) (procfs.Stat, error) { stats++; return stat(pid) }
			l.where = func(pid int) (location, bool) { locations++; return where(pid) }
			for b.Loop() {
				r.previous = l.all[:len(l.all)-started]
				if found := r.observe(l); len(found) > 0 {
					b.Fatal(found)
				}
			}
			b.ReportMetric(float64(stats)/float64(b.N), "stats/op")
			b.ReportMetric(float64(locations)/float64(b.N), "cgroups/op")
		})
	}
}

// BenchmarkReadLeases measures what a pass reads from the kernel: the list of all processes, and 10 000 pids in 200 files
// like cgroup.procs.
func BenchmarkReadLeases(b *testing.B) {
	h := cgroup.Hierarchy{Mount: b.TempDir()}
	for lease := range 200 {
		var list strings.Builder
		for i := range 50 {
			list.WriteString(strconv.Itoa(100_000+50*lease+i) + "\n")
		}
		dir := h.Dir(fmt.Sprint("/l", lease))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(list.String()), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("lists", func(b *testing.B) {
		for b.Loop() {
			for lease := range 200 {
				if pids, err := h.Direct(fmt.Sprint("/l", lease)); err != nil || len(pids) != 50 {
					b.Fatal(len(pids), err)
				}
			}
		}
	})
	b.Run("all", func(b *testing.B) {
		n := 0
		for b.Loop() {
			pids, err := procfs.PIDs()
			if err != nil {
				b.Fatal(err)
			}
			n = len(pids)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/process")
	})
}
