//go:build engines

package engines

import (
	"testing"
	"time"
)

// Two pods that keep one GPU busy have the parts of its time that they claimed, 40 and 20 of 100, because the spec permits to freeze pods.
// The emulated processor is not exact: what was measured is in the log, and the test wants what gpushared has read back.
func (l *lab) sharesAreEnforced(t *testing.T) {
	more, less := l.working(t, "share-more", "part-30g", "8GiB"), l.working(t, "share-less", "part-10g", "4GiB")
	l.node.do(t, 4*time.Minute, "until_true 200 shared_by "+more+" "+less)
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
	// A frozen pod ends as another one.
	began := time.Now()
	l.remove(t, "share-less")
	t.Logf("a pod that is frozen in turns was removed within %.0f s", time.Since(began).Seconds())
	l.remove(t, "share-more")
	l.nothingLeft(t)
}
