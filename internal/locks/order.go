// Package locks has the mutex that the daemon's packages use. Order lists which of them may be locked while another one is
// held. In ordinary builds the mutex is a sync.Mutex without extra cost; with the build tag lockcheck each lock is compared
// with those that its goroutine holds. It decides nothing.
package locks

// Order is the order in which locks are acquired, the outermost first: while one is held, only those below it may be
// acquired, by Lock and by TryLock, and not another of its kind. The adapters come after the parts of the daemon: an adapter reports
// to the daemon without waiting, by a wake-up. The test of the architecture has the mutexes without a level, and why.
var Order = []Level{
	{Planning{}, "the planning of a change that no user requested: a requested change waits for it"},
	{Apply{}, "one plan that may become a change at a time"},
	{Correction{}, "no change begins while the converge loop corrects drift"},
	{Adoption{}, "one reading of logins and units at a time, and what was adopted"},
	{Attaching{}, "one check of a process to attach in place, and the start of its lease"},
	{Watchers{}, "the leases for whose end a goroutine waits"},
	{UnknownLeases{}, "the scopes without a record of their lease, and the order of what is reported of them"},
	{EscapeScan{}, "one search for escaped processes at a time, and the process tracker"},
	{Rendering{}, "one rendering of the status at a time"},
	{IdentityRefresh{}, "one refresh of the identities at a time, so that the newest names win"},
	{Observer{}, "one observation of the node at a time, and its cache"},
	{Logins{}, "one change of login filters at a time"},
	{CDI{}, "one writing of CDI files at a time"},
	{Health{}, "the readings of GPUs, and the reports of XIDs that wait for their pair"},
	{MPSFaults{}, "what is known of the faults of MPS"},
	{TableSave{}, "one saving of the leases at a time"},
	{Table{}, "the leases. Callbacks run under it, and may acquire only the locks below"},
	{Shares{}, "the loops that time-slice GPUs"},
	{Progress{}, "one report of the progress of steps at a time"},
	{Store{}, "the state on disk, and that there is one writer"},
	{EndedFiles{}, "one writing of the leases that have ended at a time"},
	{Leaf{}, "a few values of one package, which are only read or written"},
	{MPSPeers{}, "the connections of one MPS control daemon"},
	{MPSDaemon{}, "one observation or one change of an MPS control daemon at a time"},
	{MPSAccess{}, "who reaches one MPS control daemon, and one change of that at a time"},
	{HostFiles{}, "one reading of the device files of the host at a time"},
	{AdapterLeaf{}, "a few values of one adapter, which are only read or written"},
}

// Level is one line of the order.
type Level struct {
	Kind   Ranked
	Guards string
}

// Ranked is a kind of lock with a level in the order. Only types of this package implement it.
type Ranked interface{ isRanked() }

type ranked struct{}

func (ranked) isRanked() {}

// The kinds of locks.
type (
	Planning        struct{ ranked }
	Apply           struct{ ranked }
	Correction      struct{ ranked }
	Adoption        struct{ ranked }
	Attaching       struct{ ranked }
	Watchers        struct{ ranked }
	UnknownLeases   struct{ ranked }
	EscapeScan      struct{ ranked }
	Rendering       struct{ ranked }
	IdentityRefresh struct{ ranked }
	Observer        struct{ ranked }
	Logins          struct{ ranked }
	CDI             struct{ ranked }
	Health          struct{ ranked }
	MPSFaults       struct{ ranked }
	TableSave       struct{ ranked }
	Table           struct{ ranked }
	Shares          struct{ ranked }
	Progress        struct{ ranked }
	Store           struct{ ranked }
	EndedFiles      struct{ ranked }
	Leaf            struct{ ranked }
	MPSPeers        struct{ ranked }
	MPSDaemon       struct{ ranked }
	MPSAccess       struct{ ranked }
	HostFiles       struct{ ranked }
	AdapterLeaf     struct{ ranked }
)
