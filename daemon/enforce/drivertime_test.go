package enforce

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/quota"
)

// A driver that is slow on four GPUs is one condition, with the GPUs by their index and the largest figure; it ends with the last.
func TestSlowReadingsAreOneCondition(t *testing.T) {
	uuids := []gpu.UUID{
		"GPU-f0000000-0000-0000-0000-000000000000", "GPU-10000000-0000-0000-0000-000000000001",
		"GPU-e0000000-0000-0000-0000-000000000002", "GPU-20000000-0000-0000-0000-000000000003",
	}
	rep := report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	rep.NameGPUs(func(uuid string) (int, bool) {
		for i, id := range uuids {
			if string(id) == uuid {
				return i, true
			}
		}
		return 0, false
	})
	spent := map[gpu.UUID]time.Duration{}
	en := &Enforcer{Reporter: rep, ReadingTime: func(id gpu.UUID) time.Duration { return spent[id] }}
	var all []*sampler
	for i, id := range uuids {
		s := &sampler{en: en, id: id, began: time.Now().Add(-time.Hour), control: quota.MemoryControl{}}
		for at := range 2 { // The load is that of a whole minute.
			s.control.Sampling.Spent(time.Duration(at)*time.Second, 0)
		}
		spent[id] = time.Duration(i+1) * 10 * time.Second
		s.chargeDriver(0)
		all = append(all, s)
	}
	listed := rep.Conditions.List()
	if len(listed) != 1 || !strings.HasPrefix(listed[0].Message, "readings of GPU 0, GPU 1, GPU 2, GPU 3 take up to ") {
		t.Fatalf("the conditions are %+v", listed)
	}
	for _, s := range all[1:] {
		s.en.Conditions.NotTogether(conditionDriverTime, string(s.id), driverTimeText)
	}
	if listed := rep.Conditions.List(); len(listed) != 1 || !strings.HasPrefix(listed[0].Message, "readings of GPU 0 take ") {
		t.Errorf("of the first alone they are %+v", listed)
	}
}
