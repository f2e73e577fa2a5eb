// Package locks has the mutex that the daemon's parts use. Which of them may be taken while which is held is written once,
// in Order. In ordinary builds it is a sync.Mutex and costs nothing more; with the build tag lockcheck each lock is compared
// with those that its goroutine holds. It decides nothing.
package locks

// Order is the one order in which locks are taken, the outermost first: while one is held, only those below it may be
// taken, by Lock and by TryLock alike. Nothing is taken under the last, also not another of its kind. The adapters' own
// mutexes (cgroup, systemd, gpu/worker, mps, isolation, internal/names) come after all of these: what an adapter tells us it
// tells without waiting, by a wake-up.
var Order = []Level{
	{Planning{}, "a change that nobody asked for is put together: whoever asks for one waits for that moment"},
	{Apply{}, "one plan that may become a change at a time"},
	{Correction{}, "no change begins while the converge loop mends"},
	{Adoption{}, "one look at logins and units at a time, and what was adopted"},
	{Attaching{}, "one look at processes that stay where they are, and the start of their lease"},
	{Watchers{}, "for which leases a goroutine waits for the end"},
	{EscapeScan{}, "one look for processes that left their leases at a time, and the roll of all leases"},
	{Rendering{}, "one rendering of the status at a time"},
	{IdentityRefresh{}, "one renewal of who is who at a time, so that the newest names win"},
	{Observer{}, "one observation of the node at a time, and what it keeps until the next"},
	{Logins{}, "one change of what keeps logins from devices at a time"},
	{CDI{}, "one writing of CDI files at a time"},
	{TableSave{}, "one saving of the leases at a time"},
	{Table{}, "the leases. Its callbacks run under it, and so may take only what is below"},
	{Shares{}, "the loops that share out GPUs by time"},
	{Sampling{}, "one question for samples of a GPU to the driver at a time"},
	{Progress{}, "one telling of the progress of steps at a time"},
	{Store{}, "the state on disk, and that there is one writer"},
	{Leaf{}, "a few values of one part, which are read or written and nothing more"},
}

// Level is one line of the order.
type Level struct {
	Kind   Ranked
	Guards string
}

// Ranked is a kind of lock, with its place in the order. Only those of this package are.
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
	EscapeScan      struct{ ranked }
	Rendering       struct{ ranked }
	IdentityRefresh struct{ ranked }
	Observer        struct{ ranked }
	Logins          struct{ ranked }
	CDI             struct{ ranked }
	TableSave       struct{ ranked }
	Table           struct{ ranked }
	Shares          struct{ ranked }
	Sampling        struct{ ranked }
	Progress        struct{ ranked }
	Store           struct{ ranked }
	Leaf            struct{ ranked }
)
