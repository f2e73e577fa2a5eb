package daemon

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
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

// Who asks for the sensors of now gets them. All who ask within a second cost one reading of each GPU, and who does not ask costs none.
func TestViewersReadTheSensorsOnce(t *testing.T) {
	d := newVirtualWithUsers(t)
	h := d.server.Handler()
	if err := d.node.SetSensor("0", "power", []string{"287"}); err != nil {
		t.Fatal(err)
	}
	calls := func() uint64 { return d.node.Counters().Total }
	status := func(peer, query string) *api.Status {
		t.Helper()
		w := servertest.Request(h, servertest.Peers()[peer], http.MethodGet, "/v1/status"+query, nil)
		var s api.Status
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d, %v: %s", w.Code, err, w.Body)
		}
		return &s
	}
	before := calls()
	if s := status("root", ""); s.GPUs[0].Sensors != nil || calls() != before {
		t.Errorf("without a reading: %+v, %d calls", s.GPUs[0].Sensors, calls()-before)
	}
	const each = 9 // calls of the driver for one GPU
	for _, peer := range []string{"root", "observer", "root", "observer"} {
		s := status(peer, "?sensors=true")
		if k := s.GPUs[0].Sensors; k == nil || k.PowerWatts == nil || *k.PowerWatts != 287 || k.PowerLimitWatts == nil || k.Clocks == nil {
			t.Fatalf("%s reads %+v", peer, k)
		}
	}
	if got, want := calls()-before, uint64(each*len(d.ids)); got != want {
		t.Errorf("four viewers made %d calls of the driver, want %d", got, want)
	}
	if s := status("root", ""); s.GPUs[0].Sensors == nil || calls()-before != uint64(each*len(d.ids)) {
		t.Errorf("a status without the sensors of now: %+v, %d calls", s.GPUs[0].Sensors, calls()-before)
	}
}
