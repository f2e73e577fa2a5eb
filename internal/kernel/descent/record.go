package descent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Record is the record of one daemon.
type Record struct {
	// Begins: it recorded nothing before it was opened. Processes of leases that left before are not in it.
	Begins  bool
	NotKept error // why it ends with this process; nil: it does not

	// UserOf returns the uid of the user whose lease it is. It is set before the first use, and may be nil: no user has a bound then.
	UserOf func(lease string) (uid int, ok bool)

	dir           string // where it is pinned; empty: it ends with this process
	members, lost *ebpf.Map
	fork, exit    attached
	bounds        bounds // of users

	mu      sync.Mutex   // guards the fields below, and some of bounds
	unsure  map[int]bool // pids whose entry may be of a process that has ended: see Members
	missed  uint64       // ends that the kernel did not run the program for
	refused uint64       // processes that Add had no place for
}

// maxMembers bounds the processes of all leases that are recorded: 14 MiB of the kernel.
const maxMembers = 1 << 17

// nanosecondsPerTick converts the start times of the kernel to those of /proc.
const nanosecondsPerTick = 1_000_000_000 / procfs.Ticks

// Open opens the record with this name, which is pinned in the BPF file system of the host, or begins it. It fails without root, in
// another pid namespace than the first, and with a kernel that has no BPF or does not describe its types.
func Open(hostRoot, name string) (*Record, error) {
	dir, notKept := pinDir(hostRoot, name)
	if notKept == nil {
		r, err := open(dir, maxMembers)
		if err == nil {
			return r, nil
		}
		notKept = err
	}
	r, err := open("", maxMembers)
	if err != nil {
		return nil, fmt.Errorf("cannot record which processes descend from those of a lease: %w", err)
	}
	r.NotKept = notKept
	return r, nil
}

// open opens the record that is pinned in a directory; empty: it is not pinned.
func open(dir string, capacity uint32) (r *Record, err error) {
	r = &Record{dir: dir, unsure: map[int]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if err := InFirstNamespace(); err != nil {
		return r, err
	}
	at, err := kernelLayout()
	if err != nil {
		return r, err
	}
	if r.Begins, err = r.openMaps(min(capacity, maxPIDs())); err != nil {
		return r, err
	}
	if err = r.bounds.open(min(capacity, maxPIDs())); err != nil {
		return r, err
	}
	if r.exit, err = attach("gpushare_exit", "sched_process_exit", exitProgram(at, r.members, &r.bounds)); err != nil {
		return r, err
	}
	if r.fork, err = attach("gpushare_fork", "sched_process_fork", forkProgram(at, r.members, r.lost, &r.bounds)); err != nil {
		return r, err
	}
	if err := errors.Join(r.pin(r.exit, exitPin), r.pin(r.fork, forkPin)); err != nil {
		return r, fmt.Errorf("pin it in %s: %w", dir, err)
	}
	recorded, err := r.entries()
	for pid := range recorded {
		r.unsure[pid] = true
	}
	if err == nil && len(recorded) == 0 {
		err = kernelError(r.lost.Put(uint32(0), uint64(0))) // They have ended.
	}
	return r, err
}

// InFirstNamespace fails in another pid namespace than the first: the pids of the kernel are others there.
func InFirstNamespace() error {
	const first = "pid:[4026531836]" // PROC_PID_INIT_INO (include/linux/proc_ns.h)
	switch is, err := os.Readlink("/proc/self/ns/pid"); {
	case err != nil:
		return err
	case is != first:
		return errNamespace
	}
	return nil
}

var errNamespace = errors.New("gpushared runs in a pid namespace of its own")

// maxPIDs is how many processes the kernel can have.
func maxPIDs() uint32 {
	b, err := boundedread.Trusted("/proc/sys/kernel/pid_max", boundedread.Value)
	if err != nil {
		return maxMembers
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || n == 0 {
		return maxMembers
	}
	return uint32(n)
}

// Close ends the use of the record. A record without a process is removed; another one stays where it is pinned, and the kernel
// continues it.
func (r *Record) Close() error {
	if r == nil {
		return nil
	}
	var err error
	if r.members != nil {
		recorded, e := r.entries()
		if err = e; err == nil && len(recorded) == 0 {
			err = unpin(r.dir)
		}
	}
	r.fork.Close()
	r.exit.Close()
	err = errors.Join(err, r.bounds.close())
	for _, m := range []*ebpf.Map{r.members, r.lost} {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}

// Add records a process, and what it starts from now on. undo records it, and what it started, as before. A process for which there is
// no place, for its user or at all, counts as lost: it may run.
func (r *Record) Add(lease string, pid int) (undo func() error, err error) {
	start, err := procfs.Start(pid)
	if err != nil {
		return nil, fmt.Errorf("cannot record pid %d: %w", pid, err)
	}
	p, err := procfs.OpenPidfd(pid, start)
	if err != nil {
		return nil, fmt.Errorf("cannot record pid %d: %w", pid, err)
	}
	defer p.Close()
	e := entry{Start: start * nanosecondsPerTick}
	if len(lease) > len(e.Lease) {
		return nil, fmt.Errorf("cannot record pid %d: the id of its lease is longer than %d characters", pid, len(e.Lease))
	}
	copy(e.Lease[:], lease)
	before := ""
	var was entry
	if err := r.members.Lookup(uint32(pid), &was); err == nil && was.of(start) {
		before = was.lease()
	}
	err = r.add(lease, pid, &e)
	if err == nil && p.Ended() { // The kernel may have ended its record before.
		err = errors.Join(procfs.ErrNoProcess, r.remove(pid))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot record pid %d: %w", pid, err)
	}
	return func() error { return r.move(lease, before) }, nil
}

// add records a process if there is a place for it.
func (r *Record) add(lease string, pid int, e *entry) error {
	user, known := r.userOf(lease)
	r.mu.Lock()
	defer r.mu.Unlock()
	if known {
		if err := r.bounds.learn(lease, user); err != nil {
			return err
		}
	}
	if r.bounds.full(lease) {
		return nil
	}
	r.unsure[pid] = true
	err := kernelError(r.members.Put(uint32(pid), *e))
	if errors.Is(err, unix.E2BIG) {
		r.refused++
		return nil
	}
	if err == nil && known {
		r.bounds.counted(user)
	}
	return err
}

// usersOf returns the user of each recorded lease, as far as they are known.
func (r *Record) usersOf(all map[int]entry) map[string]uint32 {
	users, known := map[string]uint32{}, map[[maxLease]byte]bool{}
	for _, e := range all {
		if known[e.Lease] {
			continue
		}
		known[e.Lease] = true
		if user, ok := r.userOf(e.lease()); ok {
			users[e.lease()] = user
		}
	}
	return users
}

func (r *Record) userOf(lease string) (uint32, bool) {
	if r.UserOf == nil {
		return 0, false
	}
	uid, ok := r.UserOf(lease)
	return uint32(uid), ok
}

// Release forgets a lease and its processes.
func (r *Record) Release(lease string) error { return r.move(lease, "") }

// move records all processes of a lease for another one, or no longer, with what they start meanwhile.
func (r *Record) move(lease, to string) error {
	const rounds = 100 // Each round moves what was started during the one before.
	for range rounds {
		all, err := r.entries()
		if err != nil {
			return err
		}
		found := false
		for pid, e := range all {
			if e.lease() != lease {
				continue
			}
			found = true
			if to == "" {
				err = r.remove(pid)
			} else {
				e.Lease = [maxLease]byte{}
				copy(e.Lease[:], to)
				if err = kernelError(r.members.Update(uint32(pid), e, ebpf.UpdateExist)); errors.Is(err, unix.ENOENT) {
					err = nil // It has ended.
				}
			}
			if err != nil {
				return fmt.Errorf("cannot end the record of lease %s: %w", lease, err)
			}
		}
		if !found {
			return nil
		}
	}
	return fmt.Errorf("cannot end the record of lease %s: its processes start others without end", lease)
}

func (r *Record) remove(pid int) error {
	err := r.members.Delete(uint32(pid))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return kernelError(err)
}

// Members returns the start time of each recorded process, by lease and pid, in clock ticks since boot.
func (r *Record) Members() (map[string]map[int]uint64, error) {
	r.mu.Lock()
	r.bounds.pass++
	pass := r.bounds.pass
	r.mu.Unlock()
	all, err := r.entries()
	if err != nil {
		return nil, err
	}
	users := r.usersOf(all)
	missed, err := r.exit.missed()
	if err != nil {
		return nil, fmt.Errorf("cannot read how many ends of processes were missed: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The kernel ends what it recorded itself. What Add records may be written when its process has just ended.
	if missed != r.missed {
		for pid := range all {
			r.unsure[pid] = true
		}
		r.missed = missed
	}
	for pid := range r.unsure {
		e, recorded := all[pid]
		if recorded {
			if st, err := procfs.Read(pid); err == nil && e.of(st.Start) {
				if !st.Dead() {
					delete(r.unsure, pid) // It runs, and the entry is written: the kernel will end it.
				}
				continue
			}
			if err := r.remove(pid); err != nil {
				return nil, err
			}
		}
		delete(all, pid)
		delete(r.unsure, pid)
	}
	if err := r.bounds.correct(all, users, pass); err != nil {
		return nil, err
	}
	out := map[string]map[int]uint64{}
	for pid, e := range all {
		lease := e.lease()
		if out[lease] == nil {
			out[lease] = map[int]uint64{}
		}
		out[lease][pid] = e.Start / nanosecondsPerTick
	}
	return out, nil
}

// Lost counts the processes of leases that were not recorded: since the record began those for which it was full or the kernel did not
// run a program, and those of each user who had too many, by uid, as long as the user has a lease.
func (r *Record) Lost() (all uint64, ofUsers map[int]uint64, err error) {
	err = r.lost.Lookup(uint32(0), &all)
	missed, e := r.fork.missed()
	r.mu.Lock()
	defer r.mu.Unlock()
	ofUsers, of := r.bounds.lostOf()
	if err = errors.Join(err, e, of); err != nil {
		return 0, nil, fmt.Errorf("cannot read how many processes of leases were not recorded: %w", kernelError(err))
	}
	return all + missed + r.refused, ofUsers, nil
}

// batch is a buffer for entries that are read at once: more than a bucket of the kernel's table ever has.
type batch struct {
	pids   [1024]uint32
	values [1024]entry
}

// spare has a batch that is not used: the record is read several times a second where there are leases.
var spare = make(chan *batch, 1)

func takeBatch() *batch {
	select {
	case b := <-spare:
		return b
	default:
		return new(batch)
	}
}

// putBack drops one if there is a spare one already.
func (b *batch) putBack() {
	select {
	case spare <- b:
	default:
	}
}

// entries reads the whole record. An entry that is there all the time is read.
func (r *Record) entries() (map[int]entry, error) {
	var cursor ebpf.MapBatchCursor
	b := takeBatch()
	defer b.putBack()
	pids, values := b.pids[:], b.values[:]
	all := map[int]entry{}
	for {
		n, err := r.members.BatchLookup(&cursor, pids, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("cannot read the record of the processes of leases: %w", kernelError(err))
		}
		for i := range n {
			all[int(pids[i])] = values[i]
		}
		if err != nil {
			return all, nil
		}
	}
}

func (e entry) lease() string { return strings.TrimRight(string(e.Lease[:]), "\x00") }

// of reports whether the entry is of the process that started at this time.
func (e entry) of(start uint64) bool { return e.Start/nanosecondsPerTick == start }
