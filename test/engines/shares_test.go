//go:build engines

package engines

import (
	"fmt"
	"testing"
	"time"
)

// Two pods that keep one GPU busy have the parts of its time that they claimed, 40 and 20 of 100, because the spec permits to freeze pods.
// The test wants what gpushared has read back, and what the virtual GPU itself has counted.
func (l *lab) sharesAreEnforced(t *testing.T) {
	more, less := l.working(t, "share-more", "part-30g", "8GiB"), l.working(t, "share-less", "part-10g", "4GiB")
	if out, err := l.node.try(4*time.Minute, "until_true 200 shared_by "+more+" "+less); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	t.Log(
		l.node.do(
			t,
			time.Minute,
			"shares; gpushare lease list; for l in $(field '.leases[].id'); do gpushare lease show $l; gpushare explain $l || true; done 2>&1",
		),
	)
	for _, uid := range []string{more, less} {
		if n := l.node.do(t, time.Minute, "processes_of "+uid+" | wc -l"); n == "0" {
			t.Errorf("pod %s has ended", uid)
		}
	}
	l.sharesAreMeasured(t, more, less)
	// A frozen pod ends as another one.
	began := time.Now()
	l.remove(t, "share-less")
	t.Logf("a pod that is frozen in turns was removed within %.0f s", time.Since(began).Seconds())
	l.remove(t, "share-more")
	l.nothingLeft(t)
}

// sharesAreMeasured compares what two pods had of a GPU within a minute with what they are due of what they both had: 67 and 33 of 100. Where
// others use the processor of this host gpushared freezes late, so the bound is wide: it refuses halves.
func (l *lab) sharesAreMeasured(t *testing.T, more, less string) {
	t.Helper()
	var a, b, of float64 // ms
	out := l.node.do(t, 3*time.Minute, "had_in 60 "+more+" "+less)
	if _, err := fmt.Sscan(out, &a, &b, &of); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	part := 100 * a / (a + b)
	t.Logf(
		"within %.1f s the pods had %.1f s and %.1f s of the GPU: %.1f and %.1f of 100, due 66.7 and 33.3",
		of/1000,
		a/1000,
		b/1000,
		part,
		100-part,
	)
	if part < 55 || part > 80 {
		t.Errorf("the pod with twice the share had %.1f of 100 of what both had", part)
	}
}
