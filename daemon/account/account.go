package account

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
)

// Account is the account of the node.
type Account struct {
	*report.Reporter
	State  *state.State
	Table  *lease.Table
	Dir    string               // of the files
	RunDir store.RunDir         // has what could not be written at a stop; empty: that is lost
	BootID string               // of the kernel
	Boot   func() time.Duration // since boot; no program can set this clock
	Leases ender
	Host   string
	GPUs   func() []gpu.Identity // of the node, as it is now; nil: not known
	Held   func(id string) bool  // the lease is frozen, and not for a time slice

	wake loop.Wake // a lease started or ended
	run  string    // the name of this run of the daemon
	idle idleLeases

	files chan struct{} // one query or one writing at a time; taken before mu
	store *usage.Store  // nil: it could not be opened yet. It and trust are used by the one that has files
	// opened is store, for the one that only compares its files with their names.
	opened   atomic.Pointer[usage.Store]
	removals atomic.Uint64 // of its files that were reported
	trust    trust

	mu         locks.Mutex[locks.Leaf] // guards what follows
	meter      *usage.Meter
	outside    *usage.OutsideMeter
	unfinished []*usage.Unfinished // of the previous run, until Recover
	loaded     bool                // unfinished was read
	recovered  bool
	pending    usage.Distinct // not on the disk yet
	pendingOf  map[string]int // how many of these each user has
	lost       int64          // records that were dropped and of which the disk does not know yet
	lostLines  int64          // how many records of the kind lost there are
	handed     bool           // the file of the previous run is there
}

// ender stops leases, and knows those that ended.
type ender interface {
	// EndedLeases returns the leases that ended since the last boot, as far as they are kept.
	EndedLeases() []api.Lease
	// StopInBackground stops a lease gracefully and tries again until it has ended.
	StopInBackground(l *lease.Lease, reason string)
}

// mostPending is how many records may wait for the disk; of further ones those of the users with the most are lost, and counted.
// 64 leases on 8 GPUs that the disk does not take for a day have about as many.
const mostPending = 16384

// leastPending is how many each user may have although others have mostPending together.
const leastPending = 256

// New returns the account of this run. Its other fields are to be set before Load.
func New(a *Account) *Account {
	a.run = rand.Text()[:12]
	a.wake, a.files, a.meter = loop.NewWake(), make(chan struct{}, 1), usage.NewMeter(a.run)
	a.outside = usage.NewOutsideMeter(a.run)
	a.idle.warned = map[idleKey]time.Duration{}
	return a
}

func (a *Account) now() usage.Moment { return usage.Moment{Date: a.Now(), Boot: a.Boot()} }

// Load reads what the previous run left. It is called before the leases are restored.
func (a *Account) Load() {
	a.files <- struct{}{}
	defer a.releaseFiles()
	handed := a.takeOver()
	if err := a.open(); err != nil {
		a.reportTrouble(err)
		return
	}
	recent, err := a.store.Recent()
	if err != nil {
		a.reportTrouble(err)
		return
	}
	recent = append(recent, handed...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unfinished, a.loaded = usage.FindUnfinished(recent), true
	if usage.LastBoot(recent) != a.BootID {
		a.unfinished = nil
		for _, u := range usage.FindUnfinished(recent) {
			r := u.Close("the node was started again", "", nil)
			a.addLocked(&r)
		}
	}
}

// open opens the files, if that has not succeeded before.
func (a *Account) open() error {
	if a.store != nil {
		return nil
	}
	s, err := usage.OpenStore(a.Dir, usage.Limits{})
	if err != nil {
		return err
	}
	a.store = s
	a.opened.Store(s)
	s.Live = func() func(string, uint64) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.meter.Live()
	}
	if a.trust.date, err = s.Newest(); err != nil {
		return err
	}
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.addLocked(&usage.Record{Kind: usage.KindRun, At: now.Date.UnixMilli(), Boot: now.Boot.Milliseconds(), Run: a.run, BootID: a.BootID})
	return nil
}

// Recover goes on with the leases that were restored, and ends the others at the last time at which they were seen.
func (a *Account) Recover() {
	a.files <- struct{}{}
	a.restoreLately()
	a.releaseFiles()
	var live []usage.Lease
	for _, l := range a.Table.Live() {
		if l.Started != nil {
			live = append(live, leaseOf(&l))
		}
	}
	ended, now := a.Leases.EndedLeases(), a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.loaded { // What the previous run wrote of them is not known.
		for _, l := range live {
			a.meter.Resume(l, nil, now)
		}
	}
	for _, r := range a.meter.Recover(a.unfinished, live, true, "it ended while the daemon was not running", now) {
		completeEnd(&r, ended)
		a.addLocked(&r)
	}
	a.unfinished, a.recovered = nil, true
	a.wake.Set()
}

// completeEnd adds to an end what the list of ended leases knows of it: the previous run may have been killed after the lease
// ended, and before the account had that. What the lease used is not changed.
func completeEnd(r *usage.Record, ended []api.Lease) {
	for i := range ended {
		e := &ended[i]
		if e.ID != r.Lease || e.Generation != r.Generation || e.Created.UnixMilli() != r.Created || e.Ended == nil {
			continue
		}
		r.Facts.Reason, r.Facts.Result, r.Facts.ExitCode = e.Reason, e.Result, e.ExitCode
		r.Exits = usage.ExitOf(e.ExitCode)
		if later := e.Ended.UnixMilli() - r.At; later > 0 && later <= time.Minute.Milliseconds() {
			r.At, r.Elapsed = r.At+later, r.Elapsed+later
		}
		return
	}
}

// leaseOf returns what the account keeps of a lease that has started.
func leaseOf(l *lease.Lease) usage.Lease {
	w := l.Wire()
	kind := l.Terms.Kind()
	out := usage.Lease{
		ID:         l.ID,
		Generation: l.Generation,
		Tenant:     l.Terms.Tenant,
		Grant:      l.Terms.Spec.Name,
		User:       l.User,
		GPUs:       l.Place.GPUs,
		Created:    l.Created,
		Started:    *l.Started,
		Wait:       l.Started.Sub(l.Created),
		Exclusive:  kind == api.ModeExclusive || kind == api.ModeMIG,
		Part:       l.Part,
		Facts: usage.Facts{
			Kind:    w.Kind,
			Origin:  w.Origin,
			UID:     l.UID,
			Command: lease.ShortCommand(l.Command, mostCommand),
			GPUs:    w.GPUs,
			Devices: w.Devices,
		},
	}
	if l.Engine != nil {
		out.Account, out.Job = l.Engine.Account, l.Engine.Key
	}
	return out
}

// mostCommand bounds what is kept of a command, in bytes.
const mostCommand = 200

// Changed takes a change of a lease's state, with the result of its command if it has ended. It is called with the table's
// lock held, and does not block.
func (a *Account) Changed(l *lease.Lease, result string, exitCode *int) {
	if l.Started == nil {
		return // It never ran.
	}
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case l.State == lease.Ended && !a.recovered:
		a.endUnfinishedLocked(l, result, exitCode)
	case !a.recovered: // Recover goes on with it.
	case l.State == lease.Ended:
		a.meter.End(l.ID, l.Generation, l.Reason, result, exitCode, now)
		a.wake.Set()
	case l.State == lease.Running && !a.meter.Has(l.ID, l.Generation):
		a.meter.Start(leaseOf(l), now)
		a.wake.Set()
	case a.meter.Rename(l.ID, l.Generation, l.Terms.Tenant, l.Terms.Spec.Name, now):
		a.wake.Set() // What is over is written soon.
	}
}

// endUnfinishedLocked ends a lease that ended while the daemon was not running.
func (a *Account) endUnfinishedLocked(l *lease.Lease, result string, exitCode *int) {
	for i, u := range a.unfinished {
		if u.Last.Lease == l.ID && u.Last.Generation == l.Generation && u.Last.Created == l.Created.UnixMilli() {
			r := u.Close(l.Reason, result, exitCode)
			a.addLocked(&r)
			a.unfinished = append(a.unfinished[:i:i], a.unfinished[i+1:]...)
			return
		}
	}
}

// Record takes what was measured.
func (a *Account) Record(i usage.Interval) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.meter.Record(&i, now)
}

// RecordOutside takes what was measured of use outside of leases.
func (a *Account) RecordOutside(i *usage.OutsideInterval) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.outside.Len() == 0
	a.outside.Record(i, now)
	if first {
		a.wake.Set() // The writer may sleep for an hour.
	}
}

// updateParts brings up to date how much of its GPUs each lease keeps from others.
func (a *Account) updateParts() {
	parts, now := a.Table.Parts(), a.now() // Without the lock, which comes after the table's.
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, part := range parts {
		a.meter.SetPart(k.ID, k.Generation, part, now)
	}
}

// addLocked keeps a record until it is on the disk.
func (a *Account) addLocked(r *usage.Record) {
	if !a.pending.Has(r) {
		n := a.pendingOf[r.User]
		if part := mostPending / (len(a.pendingOf) + 1); len(a.pending.Records()) >= mostPending && n >= max(part, leastPending) ||
			n >= mostPending {
			a.lost++
			return
		}
		if a.pendingOf == nil {
			a.pendingOf = map[string]int{}
		}
		a.pendingOf[r.User] = n + 1
	}
	a.pending.Add(r)
}

func (a *Account) releaseFiles() { <-a.files }

// acquireFiles waits for the files until ctx ends: a disk may hang.
func (a *Account) acquireFiles(ctx context.Context) error {
	select {
	case a.files <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot read the account: its files are in use: %w", ctx.Err())
	}
}

func (a *Account) reportTrouble(err error) {
	a.Log.Warn("the account cannot be written", "error", err)
	helps := "see the disk of " + a.Dir + " in the kernel's log: journalctl -k"
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		helps = "free space: df -h " + a.Dir
	}
	a.Conditions.Set(
		"account", "disk", "the account of usage cannot be written: "+err.Error(),
		helps+"; what waits is written then, and leases are not affected",
	)
	a.Invalidate()
}
