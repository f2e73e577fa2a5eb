package health

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// What could not be read again for three intervals says nothing of now.
func TestOldSensorsAreNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.Now = time.Now
		f.sensors = func(context.Context) (gpu.Sensors, error) { return gpu.Sensors{Temperature: new(48)}, nil }
		f.senseInTime(t.Context(), gpuA)
		f.sensors = func(context.Context) (gpu.Sensors, error) { return gpu.Sensors{}, gpu.ErrLost }
		time.Sleep(sensorsStale)
		f.senseInTime(t.Context(), gpuA)
		if f.Sensors(gpuA) == nil {
			t.Errorf("after %s what was read is not shown any more", sensorsStale)
		}
		time.Sleep(time.Second)
		if s := f.Sensors(gpuA); s != nil {
			t.Errorf("what was read %s ago is shown as of now: %+v", time.Since(s.ReadAt), s)
		}
	})
}
