package leases

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

func newRecorded(t *testing.T, table *lease.Table) *Leases {
	t.Helper()
	return &Leases{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), RunDir: store.RunDir(t.TempDir()), Table: table,
		Revised: loop.NewWake(), Notices: make(chan QueuedNotice, NoticeQueue),
	}
}

// A lease that has ended keeps its XIDs and the loss of its GPU, also those that are read after its end, over a restart; a file of a
// version without them is read.
func TestAnEndedLeaseKeepsItsXIDs(t *testing.T) {
	ls := newRecorded(t, lease.New(lease.Config{Isolation: leasetest.NoIsolation{}}))
	l := ended(7, 1)
	l.RecordLost(api.LostGPU{GPU: "GPU-0", Since: time.Now(), Reason: "the GPU is lost"})
	ls.Ended.Add(l)
	ls.saveEnded()
	b, _, err := ls.RunDir.Read(lastEndedFile)
	if err != nil || strings.Contains(string(b), "xids") {
		t.Fatalf("%s, %v", b, err)
	}
	ls.RecordXID(l.ID, api.LeaseXID{XID: 31, GPU: "GPU-0", Relation: api.XIDPossible})
	ls.RecordXID(l.ID, api.LeaseXID{XID: 31, GPU: "GPU-0", Relation: api.XIDCaused})
	ls.RetractXID(l.ID, api.LeaseXID{XID: 31, GPU: "GPU-0", Relation: api.XIDPossible})
	if ls.RecordLost(l.ID, api.LostGPU{GPU: "GPU-0"}) || ls.RecordLost("unknown", api.LostGPU{GPU: "GPU-0"}) {
		t.Error("a loss was recorded twice, or of an unknown lease")
	}
	again := newRecorded(t, ls.Table)
	again.RunDir = ls.RunDir
	if err := again.restoreEnded(); err != nil {
		t.Fatal(err)
	}
	w := again.EndedLeases()
	if len(w) != 1 || len(w[0].XIDs) != 1 || w[0].XIDs[0].Relation != api.XIDCaused || len(w[0].LostGPUs) != 1 {
		t.Errorf("after a restart: %+v", w)
	}
	if n := len(again.EndedLately(time.Minute)); n != 1 {
		t.Errorf("%d leases ended in the last minute", n)
	}
	if n := len(again.EndedLately(-time.Second)); n != 0 {
		t.Errorf("%d leases ended in the future", n)
	}
}

// What happens to a running lease is written soon, and not for each error of a program that makes them in a loop.
func TestWhatHappensToALeaseIsWrittenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes, written := 0, ""
		table := lease.New(lease.Config{Isolation: leasetest.NoIsolation{}, Save: func(_ context.Context, b []byte) error {
			writes, written = writes+1, string(b)
			return nil
		}})
		ls := newRecorded(t, table)
		one := lease.Lease{
			ID:         "red-1",
			Generation: 1,
			State:      lease.Running,
			Process:    lease.Process{PID: 1, Start: 1},
			Place:      lease.Place{GPUs: []gpu.UUID{"GPU-0"}},
		}
		if err := table.Restore(stateOf(t, one)); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); ls.saveLoop(ctx) }()
		synctest.Wait()
		for range 1000 {
			ls.RecordXID("red-1", api.LeaseXID{XID: 31, GPU: "GPU-0", Relation: api.XIDCaused})
		}
		synctest.Wait()
		if writes != 1 || !strings.Contains(written, `"xids"`) {
			t.Errorf("%d writes of 1000 errors: %s", writes, written)
		}
		ls.RecordLost("red-1", api.LostGPU{GPU: "GPU-0", Reason: "the GPU is lost"})
		time.Sleep(2 * saveInterval)
		synctest.Wait()
		if writes != 2 || !strings.Contains(written, `"lost_gpus"`) || !strings.Contains(written, `"count":1000`) {
			t.Errorf("%d writes: %s", writes, written)
		}
		ls.RecordFound("GPU-0", time.Now())
		ls.RecordFound("GPU-0", time.Now())
		time.Sleep(2 * saveInterval)
		synctest.Wait()
		if writes != 3 || !strings.Contains(written, `"until"`) {
			t.Errorf("%d writes: %s", writes, written)
		}
		ls.Noticed(one, lease.Notice{Text: "a line"}) // The table calls it.
		time.Sleep(2 * saveInterval)
		synctest.Wait()
		if writes != 3 {
			t.Errorf("%d writes, and nothing changed", writes)
		}
		stop()
		<-done
	})
}

// What was recorded before the daemon stops, and what could not be written at first, is written.
func TestWhatHappensToALeaseIsNotLost(t *testing.T) {
	for name, full := range map[string]bool{"at a stop": false, "after a write that failed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				written := ""
				var fails atomic.Bool
				fails.Store(full)
				table := lease.New(lease.Config{Isolation: leasetest.NoIsolation{}, Save: func(ctx context.Context, b []byte) error {
					if fails.Load() || ctx.Err() != nil {
						return errors.Join(errors.New("no space left"), ctx.Err())
					}
					written = string(b)
					return nil
				}})
				ls := newRecorded(t, table)
				if err := table.Restore(stateOf(t, lease.Lease{
					ID: "red-1", Generation: 1, State: lease.Running, Process: lease.Process{PID: 1, Start: 1},
					Place: lease.Place{GPUs: []gpu.UUID{"GPU-0"}},
				})); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); ls.saveLoop(ctx) }()
				synctest.Wait()
				ls.RecordXID("red-1", api.LeaseXID{XID: 31, GPU: "GPU-0", Relation: api.XIDCaused})
				synctest.Wait()
				if full {
					fails.Store(false)
					time.Sleep(2 * saveAgain)
					synctest.Wait()
					if !strings.Contains(written, `"xids"`) {
						t.Errorf("it was not tried again: %s", written)
					}
				}
				ls.RecordLost("red-1", api.LostGPU{GPU: "GPU-0", Reason: "the GPU is lost"})
				stop()
				<-done
				if !strings.Contains(written, `"lost_gpus"`) {
					t.Errorf("at the end there is %s", written)
				}
			})
		})
	}
}

// What is known of leases that have ended, and could not be written, is written when the daemon stops.
func TestEndedLeasesAreWrittenAtTheEnd(t *testing.T) {
	ls := newRecorded(t, lease.New(lease.Config{Isolation: leasetest.NoIsolation{}}))
	dir := filepath.Join(t.TempDir(), "later")
	ls.RunDir = store.RunDir(dir)
	ls.Ended.Add(ended(7, 1))
	ls.saveEnded()
	if _, err := os.Stat(dir); err == nil {
		t.Fatal("it was written")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	ls.saveLoop(ctx)
	if list, err := ls.readEnded(endedFile); err != nil || len(list) != 1 {
		t.Errorf("written are %d: %v", len(list), err)
	}
}

// stateOf is what a table with one lease writes.
func stateOf(t *testing.T, l lease.Lease) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{"format": 2, "leases": []lease.Lease{l}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
