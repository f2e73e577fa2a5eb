package account

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/usage"
)

// breakDisk lets nothing be written until the function is called.
func (w *fixture) breakDisk() (repair func()) {
	w.Helper()
	synctest.Wait() // What has just started has made its directory, and does not make it again in between.
	away := w.dir + ".away"
	if err := errors.Join(os.Rename(w.dir, away), os.WriteFile(w.dir, nil, 0o600)); err != nil {
		w.Fatal(err)
	}
	return func() {
		w.Helper()
		if err := errors.Join(os.Remove(w.dir), os.Rename(away, w.dir)); err != nil {
			w.Fatal(err)
		}
	}
}

// handingOver is a test of an account whose run has a directory that lasts until the next boot.
func handingOver(t *testing.T, test func(w *fixture)) {
	t.Helper()
	inBubble(t, func(w *fixture) {
		w.stop()
		w.runDir = store.RunDir(t.TempDir())
		b, err := w.table.State()
		if err != nil {
			t.Fatal(err)
		}
		w.start(b)
		test(w)
	})
}

// What the disk did not take until the daemon was stopped is written by the next run, also when the disk takes nothing then either.
func TestADiskThatTakesNothingUntilTheStop(t *testing.T) {
	for _, c := range []struct {
		name  string
		ends  bool // the lease ends before the stop
		stops int  // of the daemon, until the disk is repaired
	}{{"a lease goes on", false, 1}, {"its lease has ended", true, 1}, {"twice", false, 2}, {"twice, and its lease has ended", true, 2}} {
		t.Run(c.name, func(t *testing.T) {
			handingOver(t, func(w *fixture) {
				w.busy = part(0.5)
				w.pass(10 * time.Second)
				repair := w.breakDisk()
				w.pass(3 * time.Hour)
				held, ended := 3*time.Hour+10*time.Second, int64(0)
				if c.ends {
					if err := w.table.Ended(w.Context(), w.id, "it was enough"); err != nil {
						t.Fatal(err)
					}
					ended = 1
				}
				for i := range c.stops {
					saved, err := w.table.State()
					if err != nil {
						t.Fatal(err)
					}
					w.stop()
					if i == c.stops-1 {
						repair()
					}
					w.start(saved)
					synctest.Wait() // It has tried to write, and to remove old files.
				}
				for range 2 {
					w.pass(70 * time.Second)
					if !c.ends {
						held += 70 * time.Second
					}
					u, e := w.get("root", "")
					if e != nil || u.LostRecords != 0 {
						t.Errorf("%v, %d records are lost", e, u.LostRecords)
					}
					r := w.total()
					hasRow(t, &r, held, held/2, held, 1, ended)
					if list := w.endedLeases(); len(list) != int(ended) || c.ends && list[0].Reason != "it was enough" {
						t.Errorf("ended leases: %+v", list)
					}
					if _, err := os.Stat(w.runDir.Path(handoverFile)); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("what is on the disk is still handed over: %v", err)
					}
					saved, err := w.table.State()
					if err != nil {
						t.Fatal(err)
					}
					w.stop()
					w.start(saved)
				}
			})
		})
	}
}

// What is too much, and what cannot be read, is counted as lost.
func TestLostInAHandover(t *testing.T) {
	handingOver(t, func(w *fixture) {
		repair := w.breakDisk()
		const records, most = 1200, mostHandedOver / (10 << 10)
		w.mu.Lock()
		for i := range records {
			w.addLocked(&usage.Record{
				Kind: "of a later version", At: w.Now().UnixMilli(), Run: "another", Part: int64(i),
				Facts: &usage.Facts{Reason: strings.Repeat("x", 10<<10)},
			})
		}
		w.mu.Unlock()
		w.stop()
		repair()
		w.start(nil)
		w.pass(time.Minute)
		if u, e := w.get("root", ""); e != nil || u.LostRecords < records-most || u.LostRecords > records-most+50 {
			t.Errorf("%d of %d records are lost, at least %d are too much: %v", u.LostRecords, records, records-most, e)
		}
	})
	handingOver(t, func(w *fixture) {
		w.stop()
		if err := os.WriteFile(w.runDir.Path(handoverFile), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.start(nil)
		w.pass(time.Minute)
		if u, e := w.get("root", ""); e != nil || u.LostRecords != 1 {
			t.Errorf("of a file that cannot be read %d records are lost: %v", u.LostRecords, e)
		}
	})
}
