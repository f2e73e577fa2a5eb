package lease

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/owed"
	"github.com/gpushare/gpushare/internal/rename"
)

// Config is what a table needs. Isolation is required.
type Config struct {
	Isolation Isolation
	// Save writes the state before a lease is reported. Calls do not overlap. nil: nothing is saved.
	Save func(ctx context.Context, state []byte) error
	// Changed is called for every change of a lease's state, in order, with the table's lock held: it must neither
	// block nor call the table, and may take only locks that come after the table's (see package locks).
	Changed func(Lease)
	// Noticed is called for every notice of a lease, under the same terms as Changed.
	Noticed func(l Lease, n Notice)
	// Capacity finds capacity for instances that are created on demand; nil: none is created.
	Capacity CapacityFinder
	// InstancePending is called if there are instances to create, under the same terms as Changed: TakePendingInstances
	// returns them.
	InstancePending func()
	// Preempted is called if there are leases to stop for a request of a higher priority, under the same terms as
	// Changed: TakePreemptions returns them.
	Preempted func()
	// MemoryUse is what a lease uses of a GPU's memory, in bytes, under the same terms as Changed; nil: it is not known.
	MemoryUse func(id string, on gpu.UUID) *uint64
	Now       func() time.Time // nil: time.Now
	Random    func(n int) int  // for ids, returns a number below n; nil: math/rand
}

// Table is the lease table of one node. Its methods may be called concurrently.
type Table struct {
	cfg Config

	// saveMu serialises Save. Lock order: saveMu, then mu.
	saveMu locks.Mutex[locks.TableSave]
	saved  uint64 // the version that was saved last; guarded by saveMu

	// mu guards all fields below.
	mu           locks.Mutex[locks.Table]
	version      uint64 // counts changes that must be saved
	generation   uint64 // the last one assigned
	sequence     uint64 // of tickets
	ready        bool   // Update was called
	view         View
	leases       map[string]*entry // that have a place
	queue        []*Ticket         // in order
	reserved     map[Key][]Place
	unmet        []Unmet
	savedTickets []savedTicket // from before the restart, not claimed yet
	recentIDs    []string      // ids of the last leases that ended
	endedKeys    []EndedKey    // of the last keyed leases that ended, oldest first
	lately       lately
	owed         owed.Accounts // what users owe; has a lock of its own
	order        queueOrder
	named        uint64      // the generation of the spec whose names the table has
	renames      rename.List // that specs made, also before it
	coming       *coming     // the grants of a spec that is being accepted; nil: none is
}

// entry is a lease in the table.
type entry struct {
	Lease
	busy         bool   // Isolate or RemoveIsolation is running
	endRequested string // the reason, if Ended was called while busy
	preempted    bool   // TakePreemptions returned it
	unstarted    bool   // its start failed

	ticket *Ticket // that it was placed for; nil after a restart
	spec   uint64  // the generation of the spec that it was placed under
}

// New returns an empty table. It admits no lease until Update was called.
func New(cfg Config) *Table {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Table{cfg: cfg, leases: map[string]*entry{}, reserved: map[Key][]Place{}}
}
