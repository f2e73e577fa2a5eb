package attribution

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/cgroup"
)

func TestRates(t *testing.T) {
	var r rates
	began := time.Now()
	for i, c := range []struct {
		at, used time.Duration
		want     float64
	}{
		{0, 10 * time.Second, 0},                                         // nothing to compare with
		{500 * time.Millisecond, 11 * time.Second, 0},                    // too close
		{2 * time.Second, 14 * time.Second, 200},                         // since the first
		{2*time.Second + time.Millisecond, 20 * time.Second, 200},        // too close: what is known
		{12 * time.Second, 14 * time.Second, 0},                          // idle
		{13 * time.Second, time.Second, 0},                               // another slice of that name
		{14 * time.Second, 1500 * time.Millisecond, 50},                  //
		{14*time.Second + rateMaxInterval + time.Second, time.Hour, 0},   // too long ago
		{16*time.Second + rateMaxInterval, time.Hour + time.Second, 100}, //
	} {
		if got := r.record("/a", c.used, began.Add(c.at)); got != c.want {
			t.Errorf("%d: at %s with %s used it is %v, want %v", i, c.at, c.used, got, c.want)
		}
	}
	if got := r.record("/b", time.Hour, began); got != 0 {
		t.Errorf("a slice that was not recorded has the rate %v", got)
	}
}

// A device that is open although the slice does not allow it does not prevent its closing.
func TestGrantedKeepsAllowedDevices(t *testing.T) {
	node := func(minor uint32) cgroup.DeviceRule {
		return cgroup.DeviceRule{Type: 'c', Major: 195, Minor: minor, Access: "rw"}
	}
	s := &cgroup.SliceState{Closed: true, Devices: []cgroup.DeviceRule{node(0), node(1)}}
	if diff := cmp.Diff([]cgroup.DeviceRule{node(1)}, granted([]cgroup.DeviceRule{node(1), node(2)}, s)); diff != "" {
		t.Error(diff)
	}
}
