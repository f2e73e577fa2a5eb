//go:build tools

package tools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
)

// TestRealMPSLog counts what observations make the real control daemons write, in a time that passes at once, and looks whether a change
// of a tenant is noticed by the next observation although the limits are not asked for each time.
func TestRealMPSLog(t *testing.T) {
	eachMPS(t, func(t *testing.T, branch int, s *control.Supervisor) {
		now := time.Now()
		s.Now = func() time.Time { return now }
		id := mps.Whole(oneGPU)
		if err := s.Start(t.Context(), mps.Settings{GPU: oneGPU, Threads: 30, Memory: 2 << 30}); err != nil {
			t.Fatal(err)
		}
		env, err := s.Environment(id, mps.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		tenants := strings.TrimPrefix(env[0], "CUDA_MPS_PIPE_DIRECTORY=")
		observe := func(n int) *mps.State {
			var st *mps.State
			for range n {
				now = now.Add(30 * time.Second)
				st = s.Observe(t.Context(), id)
			}
			return st
		}
		log := func() int64 {
			info, err := os.Stat(filepath.Join(filepath.Dir(s.RunDir), "s", mps.UnitName(id)+".log"))
			if err != nil {
				t.Fatal(err)
			}
			return info.Size()
		}
		observe(5)
		const n, ofDay, most = 60, 2880, 1_000_000
		before := log()
		if st := observe(n); !st.Healthy() {
			t.Fatalf("observed %+v", st)
		}
		day := (log() - before) * ofDay / n
		t.Logf("%d bytes a day, computed from %d observations", day, n)
		if day > most {
			t.Errorf("a day of observations writes %d bytes to the log, want at most %d", day, most)
		}

		for i, command := range []string{"set_default_active_thread_percentage 90", "set_default_device_pinned_mem_limit 0 4G"} {
			observe(5)
			if code, out := query(t, s.Control, tenants, command); code != 0 {
				t.Fatalf("%s exits with %d: %s", command, code, out)
			}
			st := observe(1)
			want := []string{"is 90, it should be 30", `reads back as "4G", it should be "2G"`}[i]
			if noticed := st.Drift && strings.Contains(st.Reason, want); noticed != (branch == 535) {
				t.Errorf("after %q of a tenant: drift %v, %s", command, st.Drift, st.Reason)
			}
			if err := s.Correct(t.Context(), *st.Settings); err != nil {
				t.Fatal(err)
			}
			if st := observe(1); !st.Healthy() {
				t.Errorf("corrected: %+v", st)
			}
		}
	})
}
