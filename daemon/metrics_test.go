package daemon

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/daemon/server/servertest"
)

// A scrape calls no driver, even when the status is rendered for it: it is computed from the last observation.
func TestAScrapeCallsNoDriver(t *testing.T) {
	d := newVirtualWithUsers(t)
	h := d.server.Handler()
	d.XIDs.Add(d.ids[0], 79, time.Now())
	before := d.node.Counters().Total
	for range 20 {
		d.Invalidate()
		w := servertest.Request(h, servertest.Peers()["root"], http.MethodGet, "/metrics", nil)
		if w.Code != http.StatusOK ||
			!strings.Contains(w.Body.String(), `gpushare_gpu_xid_errors_total{gpu="0",uuid="`+string(d.ids[0])+`",xid="79"} 1`) {
			t.Fatalf("a scrape is answered with %d: %s", w.Code, w.Body)
		}
		if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
			t.Fatalf("its type is %q", kind)
		}
	}
	if after := d.node.Counters().Total; after != before {
		t.Errorf("20 scrapes made %d calls of the driver", after-before)
	}
	if d.Counters.Renders.Load() < 20 {
		t.Errorf("the status was rendered %d times", d.Counters.Renders.Load())
	}
}

// Metrics have what the status has for the same caller.
func TestMetricsOfAMember(t *testing.T) {
	d := newVirtualWithUsers(t)
	h := d.server.Handler()
	d.XIDs.Add(d.ids[0], 79, time.Now())
	for peer, all := range map[string]bool{"root": true, "observer": true, "member": false} {
		w := servertest.Request(h, servertest.Peers()[peer], http.MethodGet, "/metrics", nil)
		text := w.Body.String()
		for _, metric := range []string{"gpushare_gpu_info{", "gpushare_gpu_xid_errors_total{", "gpushare_converge_runs_total "} {
			if strings.Contains(text, "\n"+metric) != all {
				t.Errorf("%s reads %s: %v, want %v", peer, metric, !all, all)
			}
		}
		if w.Code != http.StatusOK || !strings.Contains(text, "\ngpushare_build_info{") {
			t.Errorf("%s is answered with %d: %s", peer, w.Code, text)
		}
	}
}
