package fairness

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/quota"
)

// TestMissingAnswersAreNoIdleTime checks what is done and said while answers of the driver are missing, late or out of order: leases keep
// their shares and the GPU its work, no lease is taken for idle, and nothing is said to be met that was not measured.
func TestMissingAnswersAreNoIdleTime(t *testing.T) {
	for _, v := range faulty() {
		for _, name := range []string{"30/70, queues 50 ms", "10/20/30/40, queues 50 ms", "20/80, inference and training"} {
			t.Run(v.Name+"/"+name, func(t *testing.T) {
				t.Parallel()
				sc := scenarioOf(t, name)
				all := Listen(sc, v, 1)
				for i, said := range all {
					if wrong := Untrue(said); len(wrong) > 0 {
						t.Errorf("%d windows, first %v", len(wrong), wrong[0])
					}
					for k := range said {
						missing := v.Rows == Stops && said[k].At > 75*time.Second && said[k].At < 118*time.Second
						if missing && said[k].Verdict.State != quota.Unmeasured {
							t.Fatalf("without an answer: %v", said[k])
						}
						busy := sc.Loads[i].Queue != 0
						if busy && said[k].Verdict.State == quota.Less {
							t.Fatalf("it always has work: %v", said[k])
						}
					}
				}
				f := Run(sc, v, Enforced, 1)
				limits := sc.Limits(v)
				// What is learned of the minute without answers is wrong for a while.
				most := limits.RMS10 + 4
				if v.Rows == Stops && (v.NoSeries || v.Series == Stops) {
					most = 10 // These are the answers of an idle GPU: all run side by side then.
				}
				if f.Busy < limits.Busy-2 || f.RMS10 > most {
					t.Errorf("%v; limits: %+v", f, limits)
				}
			})
		}
	}
}
