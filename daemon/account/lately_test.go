package account

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server/servertest"
)

// latelyOf is what alice used lately, in GPU-seconds.
func (w *fixture) latelyOf() float64 {
	w.Helper()
	for _, u := range w.table.Lately().Users {
		if u.Tenant == "vision" && u.UID == servertest.UidAlice {
			return u.GPUSeconds
		}
	}
	return 0
}

// What was used lately is known after a restart of the daemon exactly, and after a boot of the node up to the last writing.
func TestLatelySurvives(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.pass(time.Hour)
		saved, used := w.kill(), w.latelyOf()
		if used < 100 {
			t.Fatalf("used %v GPU-seconds", used)
		}
		w.start(saved)
		if got := w.latelyOf(); math.Abs(got-used) > 0.01*used {
			t.Errorf("after a restart %v GPU-seconds, before %v", got, used)
		}
		w.pass(time.Minute)
		used = w.latelyOf()
		w.stop()
		w.boot = "boot-2"
		elapse(time.Duration(api.DefaultHalfLife))
		w.start(nil)
		if got := w.latelyOf(); math.Abs(got-used/2) > 0.05*used {
			t.Errorf("after a boot %v GPU-seconds, before %v a half-life ago", got, used)
		}
	})
}

// A file that cannot be read is no reason not to start.
func TestLatelyIsDamaged(t *testing.T) {
	inBubble(t, func(w *fixture) {
		w.pass(time.Hour)
		w.stop()
		for _, name := range []string{latelyFile, latelyFile + ".previous"} {
			if err := os.WriteFile(filepath.Join(w.dir, name), []byte("{\"at\": 7"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.start(nil)
		if got := w.latelyOf(); got != 0 {
			t.Errorf("read %v GPU-seconds of a damaged file", got)
		}
	})
}
