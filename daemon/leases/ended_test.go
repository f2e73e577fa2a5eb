package leases

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

var longCommand = lease.ShortCommand([]string{strings.Repeat("x", 1<<20)}, lease.MaxKept)

func ended(uid, i int) lease.Lease {
	return lease.Lease{ID: fmt.Sprintf("%d-%d", uid, i), UID: uid, Started: new(time.Now()), Command: longCommand}
}

// Hundreds of leases are kept, and all are written each time one ends: they are not copied for it.
func TestTheEndOfALeaseAllocatesLittle(t *testing.T) {
	ls := &Leases{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), RunDir: store.RunDir(t.TempDir())}
	for i := range maxEndedPerUser {
		ls.Ended.Add(ended(1, i))
	}
	ls.saveEnded()
	ls.Ended.Add(ended(1, maxEndedPerUser))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ls.saveEnded()
	_ = ls.surplusOutputs()
	runtime.ReadMemStats(&after)
	const most = 100 << 10
	if n := after.TotalAlloc - before.TotalAlloc; n > most {
		t.Errorf("%d bytes are allocated, and at most %d should be", n, most)
	}
	again := &Leases{Reporter: ls.Reporter, RunDir: ls.RunDir}
	if err := again.restoreEnded(); err != nil {
		t.Fatal(err)
	}
	if list := again.Ended.all(); len(list) != maxEndedPerUser || list[0].Lease.ID != fmt.Sprintf("1-%d", maxEndedPerUser) {
		t.Errorf("%d leases were written, the last is %s", len(list), list[0].Lease.ID)
	}
}

// The end of a lease writes those that ended last, and all only sometimes: a lease that starts waits for it.
func TestTheEndOfALeaseWritesLittle(t *testing.T) {
	dir := store.RunDir(t.TempDir())
	ls := &Leases{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), RunDir: dir}
	written := 0
	const ends = 400
	sizes := map[string]time.Time{}
	for i := range ends {
		ls.Ended.Add(ended(i%4, i))
		ls.saveEnded()
		for _, name := range []string{endedFile, lastEndedFile} {
			if st, err := os.Stat(dir.Path(name)); err == nil && !st.ModTime().Equal(sizes[name]) {
				written, sizes[name] = written+int(st.Size()), st.ModTime()
			}
		}
	}
	one, err := json.Marshal(ended(1, 1))
	if most := ends * 40 * len(one); err != nil || written > most {
		t.Errorf("%d bytes were written, and at most %d should be, %v", written, most, err)
	}
}

// Notices, XIDs and ends of leases are written at the same time, and none is lost.
func TestEndedLeasesAreWrittenByMany(t *testing.T) {
	var log bytes.Buffer
	ls := &Leases{Reporter: report.NewReporter(slog.New(slog.NewTextHandler(&log, nil)), time.Now), RunDir: store.RunDir(t.TempDir())}
	const many, each = 8, 20
	var writers sync.WaitGroup
	for uid := range many {
		writers.Go(func() {
			for i := range each {
				l := ended(uid, i)
				l.Command = nil
				ls.Ended.Add(l)
				ls.saveEnded()
			}
		})
	}
	writers.Wait()
	again := &Leases{Reporter: ls.Reporter, RunDir: ls.RunDir}
	if err := again.restoreEnded(); err != nil {
		t.Fatal(err)
	}
	if n := len(again.Ended.all()); n != many*each || log.Len() > 0 {
		t.Errorf("%d leases are restored of %d: %s", n, many*each, log.String())
	}
}

// Whenever the daemon ends, the next one has the leases that had ended, and their notes.
func TestEndedLeasesAreRestored(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "ended")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		fresh := func() *Leases {
			return &Leases{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), RunDir: store.RunDir(dir)}
		}
		shown := func(ls *Leases) (out []string) {
			for _, e := range ls.Ended.all() {
				out = append(out, fmt.Sprint(e.Lease.ID, e.Lease.Generation, e.Lease.Notices))
			}
			return out
		}
		ls, count := fresh(), 0
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			step := rapid.SampledFrom([]string{"end", "note", "lost", "by an earlier version"}).Draw(r, "step")
			switch step {
			case "end":
				for range rapid.SampledFrom([]int{1, 2, maxLastEnded, maxLastEnded + 2}).Draw(r, "number") {
					count++
					l := ended(1+count%2, count/3) // Two of one user may have the same id.
					l.Generation, l.Command = uint64(count), nil
					ls.Ended.Add(l)
					ls.saveEnded()
				}
			case "note":
				if all := ls.Ended.all(); len(all) > 0 {
					id := all[rapid.IntRange(0, len(all)-1).Draw(r, "which")].Lease.ID
					ls.Ended.note(id, fmt.Sprint("note ", count))
					ls.saveEnded()
				}
			case "lost":
				if os.Remove(ls.RunDir.Path(lastEndedFile)) == nil {
					ls.Ended.again()
					ls.saveEnded()
				}
			case "by an earlier version": // which wrote one file
				b, err := json.Marshal(slices.Clone(ls.Ended.list))
				if err == nil {
					err = ls.RunDir.Write(endedFile, b)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			again := fresh()
			if err := again.restoreEnded(); err != nil {
				t.Fatal(err)
			}
			if got, want := shown(again), shown(ls); !slices.Equal(got, want) {
				r.Fatalf("restored:\n%q\nwant:\n%q", got, want)
			}
			if step == "by an earlier version" || rapid.Bool().Draw(r, "restart") {
				ls = again
			}
		}
	})
}

// The results of one user do not push out those of another, and all together have a limit too.
func TestEndedLeasesAreKeptPerUser(t *testing.T) {
	var e endedLeases
	const neighbour = 1
	e.Add(ended(neighbour, 0))
	for i := range maxEndedPerUser + 5 {
		e.Add(ended(2, i))
	}
	if _, ok := e.get("1-0"); !ok {
		t.Error("the leases of another user pushed out the neighbour's")
	}
	if _, ok := e.get("2-4"); ok {
		t.Error("one user has no limit")
	}
	if _, ok := e.get("2-5"); !ok {
		t.Errorf("a user has fewer than %d", maxEndedPerUser)
	}
	const users = 50
	for uid := 2; uid < 2+users; uid++ {
		for i := range 2 * maxEndedPerUser {
			e.Add(ended(uid, i))
		}
	}
	counts := map[int]int{}
	for _, x := range e.all() {
		counts[x.Lease.UID]++
	}
	if n := len(e.all()); n != maxEnded {
		t.Errorf("%d are kept together, want %d", n, maxEnded)
	}
	if counts[neighbour] != 1 {
		t.Error("many users pushed out the neighbour's")
	}
	for uid := 2; uid < 2+users; uid++ {
		if counts[uid] < maxEnded/(users+1) {
			t.Errorf("user %d has %d left", uid, counts[uid])
		}
		if _, ok := e.get(fmt.Sprintf("%d-%d", uid, 2*maxEndedPerUser-1)); !ok {
			t.Errorf("the last lease of user %d is not kept", uid)
		}
	}
	_, parts, err := e.encode()
	b := bytes.Join(parts, nil)
	if most := maxEnded * (lease.MaxKept + 1<<10); err != nil || len(b) > most {
		t.Errorf("the file has %d bytes, want at most %d: %v", len(b), most, err)
	}
	if bytes.Count(b, []byte("…")) < maxEnded {
		t.Error("the commands do not say that they are cut")
	}
}

// keptOutputs has the output of some leases.
type keptOutputs struct {
	Outputs

	mu    sync.Mutex // guards ids
	ids   []string
	bytes int64 // of each
}

func (k *keptOutputs) Size(string) int64 { return k.bytes }

func (k *keptOutputs) add(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ids = append(k.ids, id)
}

func (k *keptOutputs) list() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.ids)
}

func (k *keptOutputs) Prune(keep func(id string) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ids = slices.DeleteFunc(k.ids, func(id string) bool { return !keep(id) })
}

func detached(uid, i int) lease.Lease {
	l := ended(uid, i)
	l.Origin = lease.OriginDetached
	return l
}

// pruning returns leases whose loop removes output until the test ends. The ended ones are in the list when it starts. It is called in
// a bubble.
func pruning(t *testing.T, outputs *keptOutputs, ended ...lease.Lease) *Leases {
	t.Helper()
	ls := &Leases{Table: lease.New(lease.Config{}), Detached: Detached{Outputs: outputs}}
	for _, l := range ended {
		ls.Ended.Add(l)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ls.outputLoop(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return ls
}

// The output of ended leases of one user has a limit in bytes, and the last one is kept. That of another user is not affected.
func TestOutputOfEndedLeasesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outputs := &keptOutputs{ids: []string{"3-0"}, bytes: userOutput / 4}
		ls := pruning(t, outputs, detached(3, 0))
		for i := range 10 {
			outputs.add(fmt.Sprintf("2-%d", i))
			ls.Ended.Add(detached(2, i))
			synctest.Wait()
		}
		if kept := outputs.list(); !slices.Equal(kept, []string{"3-0", "2-6", "2-7", "2-8", "2-9"}) {
			t.Errorf("what is kept: %q", kept)
		}
		if n := len(ls.Ended.all()); n != 11 {
			t.Errorf("%d leases are listed", n)
		}
	})
}

// Whatever the order in which one user starts and ends leases, the output of the live ones has a limit.
func TestOutputOfLiveLeasesIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var live []int64
		for range rapid.IntRange(0, 400).Draw(t, "steps") {
			if len(live) == 128 || len(live) > 0 && rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "ended")
				live = slices.Delete(live, i, i+1)
				continue
			}
			live = append(live, outputOf(len(live)+1))
		}
		sum := int64(0)
		for i, kept := range live {
			if sum += kept; kept <= 0 || kept > launch.MaxOutput || kept > userOutput/int64(i+1) {
				t.Fatalf("the %d-th live lease keeps %d bytes", i+1, kept)
			}
		}
		if sum > 279<<20 {
			t.Fatalf("%d leases keep %d bytes", len(live), sum)
		}
	})
}

// Output is removed together with the entry of its lease: when it is pushed out, and when it is too old.
func TestOutputIsRemovedWithItsEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outputs := &keptOutputs{}
		ls := pruning(t, outputs)
		for i := range maxEndedPerUser + 1 {
			ls.Ended.Add(detached(2, i)) // First: the output of a lease that is not live and not listed is removed.
			outputs.add(fmt.Sprintf("2-%d", i))
		}
		synctest.Wait()
		if kept := outputs.list(); len(kept) != maxEndedPerUser || kept[0] != "2-1" {
			t.Errorf("%d outputs are kept: %q", len(kept), kept)
		}
		time.Sleep(endedRetention + pruneInterval) // virtual
		synctest.Wait()
		if kept := outputs.list(); len(kept) != 0 {
			t.Errorf("%d outputs of old leases are kept", len(kept))
		}
	})
}
