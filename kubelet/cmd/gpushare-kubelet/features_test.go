package main

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/test/harness"
)

// An API server that drops the counters of devices is offered none: the scheduler would grant what is not there. The log has the feature.
func TestAPIServerWithoutAFeature(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.server.older = true
	d.start(t, "")
	d.register(t)
	const said = "nothing is published"
	if err := harness.Await(soon(t), 20*time.Millisecond, "the log does not say it", func() (bool, error) {
		return strings.Contains(d.job.Output(), said), nil
	}); err != nil {
		t.Fatal(err)
	}
	d.server.await(t, "devices without counters are offered", func(m map[string]resourceapi.Device) bool { return len(m) == 0 })
	for l := range strings.Lines(d.job.Output()) {
		if strings.Contains(l, said) && !strings.Contains(l, "DRAPartitionableDevices") {
			t.Errorf("it does not name the feature: %s", l)
		}
	}
}
