package descent

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// One user can fork without end, and the record has one size for all. So the programs count the processes of each user, and count those
// above the bound without recording them. The user is the one whose lease it is: in a user namespace a process has any uid that its user
// likes.
//
// The counts are not pinned. Until the first Members of a daemon its programs have no bound for the leases from before. Programs of an
// earlier version, which have none at all, are thus replaced like any others.

const (
	// partOfUser is which part of the record one user may have: of the usual size 16384 processes.
	partOfUser = 8
	// maxUsers and maxLeases bound what is counted at a time. Users and leases beyond have no bound of their own.
	maxUsers  = 4096
	maxLeases = 16384
)

// usersSpec counts the recorded processes of each user, by uid. After an end that came before a correction it is less than zero.
func usersSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "gpushare_users", Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: maxUsers}
}

// refusedSpec counts the processes of each user that were not recorded.
func refusedSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "gpushare_excess", Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: maxUsers}
}

// leasesSpec has the uid of each lease. Only the daemon adds to it: no fork waits for its memory.
func leasesSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: "gpushare_lease", Type: ebpf.Hash, KeySize: maxLease, ValueSize: 4, MaxEntries: maxLeases, Flags: unix.BPF_F_NO_PREALLOC,
	}
}

// bounds bound the processes of each user.
type bounds struct {
	users, refused, leases *ebpf.Map
	most                   int64 // of one user

	// The mutex of the record guards these.
	known map[string]knownLease
	pass  uint64 // of Members
}

// knownLease is a lease in the map of leases.
type knownLease struct {
	user  uint32
	added uint64 // in which pass
}

func (b *bounds) open(capacity uint32) (err error) {
	b.most, b.known = int64(max(1, capacity/partOfUser)), map[string]knownLease{}
	if b.users, err = ebpf.NewMap(usersSpec()); err == nil {
		b.refused, err = ebpf.NewMap(refusedSpec())
	}
	if err == nil {
		b.leases, err = ebpf.NewMap(leasesSpec())
	}
	return kernelError(err)
}

func (b *bounds) close() (err error) {
	for _, m := range []*ebpf.Map{b.users, b.refused, b.leases} {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}

// find sets R9 to where the processes of a user are counted, or to 0: the user of the lease whose id R2 points to. The uid is then the
// key on the stack.
func (b *bounds) find(next string) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R9, 0),
		asm.LoadMapPtr(asm.R1, b.leases.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, next),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.StoreMem(asm.RFP, userAt, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, b.users.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, userAt),
		asm.FnMapLookupElem.Call(),
		asm.Mov.Reg(asm.R9, asm.R0),
	}
}

// refuse ends the program if the user of R9 has too many processes, and counts one more.
func (b *bounds) refuse(next string) asm.Instructions {
	return asm.Instructions{
		asm.JEq.Imm(asm.R9, 0, next),
		asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord),
		asm.JSLT.Imm(asm.R1, int32(b.most), next),
		asm.LoadMapPtr(asm.R1, b.refused.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, userAt),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Ja.Label("end"),
	}
}

// count adds to the processes of the user of R9.
func count(n int32) asm.Instructions {
	return asm.Instructions{
		asm.JEq.Imm(asm.R9, 0, "end"),
		asm.Mov.Imm(asm.R1, n),
		asm.StoreXAdd(asm.R9, asm.R1, asm.DWord),
	}
}

// learn notes whose a lease is. The mutex of the record is held.
func (b *bounds) learn(lease string, user uint32) error {
	if was, ok := b.known[lease]; ok && was.user == user {
		b.known[lease] = knownLease{user, b.pass}
		return nil
	}
	for _, m := range []*ebpf.Map{b.users, b.refused} {
		if err := m.Update(user, uint64(0), ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return withoutBound(err)
		}
	}
	if err := b.leases.Put(leaseKey(lease), user); err != nil {
		return withoutBound(err)
	}
	b.known[lease] = knownLease{user, b.pass}
	return nil
}

// withoutBound is no error when there are more users or leases than are counted.
func withoutBound(err error) error {
	if err = kernelError(err); errors.Is(err, unix.E2BIG) {
		return nil
	}
	return fmt.Errorf("cannot count the processes of a user: %w", err)
}

func leaseKey(lease string) (key [maxLease]byte) {
	copy(key[:], lease)
	return key
}

// full reports whether the user of a lease has too many processes, and counts one that is not recorded then. The mutex of the record is
// held, and only the programs change the counts meanwhile: a correction makes up for it.
func (b *bounds) full(lease string) bool {
	l, ok := b.known[lease]
	if !ok || b.processesOf(l.user) < b.most {
		return false
	}
	var n uint64
	if b.refused.Lookup(l.user, &n) == nil {
		_ = b.refused.Put(l.user, n+1) // It exists. One of the programs may count at the same time, and one of both is enough.
	}
	return true
}

// counted counts a process that the daemon has recorded.
func (b *bounds) counted(user uint32) {
	_ = b.users.Update(user, b.processesOf(user)+1, ebpf.UpdateExist) // A user who is not counted has no bound.
}

func (b *bounds) processesOf(user uint32) int64 {
	var n int64
	if b.users.Lookup(user, &n) != nil {
		return 0
	}
	return n
}

// correct sets the count of each user to that of the record, and forgets leases without a process. The mutex of the record is held; users
// has the users of leases that were read in this pass.
func (b *bounds) correct(all map[int]entry, users map[string]uint32, pass uint64) error {
	processes := map[string]int64{}
	for _, e := range all {
		processes[e.lease()]++
	}
	for lease := range processes {
		if user, ok := users[lease]; ok {
			if err := b.learn(lease, user); err != nil {
				return err
			}
		}
	}
	counts, ended := map[uint32]int64{}, map[uint32]bool{}
	for lease, l := range b.known {
		if processes[lease] > 0 || l.added == pass {
			counts[l.user] += processes[lease]
			continue
		}
		delete(b.known, lease)
		ended[l.user] = true
		if err := b.leases.Delete(leaseKey(lease)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return withoutBound(err)
		}
	}
	for user, n := range counts {
		if b.processesOf(user) == n {
			continue
		}
		if err := b.users.Put(user, n); err != nil {
			return withoutBound(err)
		}
	}
	for user := range ended {
		if _, still := counts[user]; still {
			continue
		}
		for _, m := range []*ebpf.Map{b.users, b.refused} {
			if err := m.Delete(user); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return withoutBound(err)
			}
		}
	}
	return nil
}

// lostOf returns how many processes of each user were not recorded. The mutex of the record is held.
func (b *bounds) lostOf() (map[int]uint64, error) {
	lost := map[int]uint64{}
	for _, l := range b.known {
		var n uint64
		err := b.refused.Lookup(l.user, &n)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, kernelError(err)
		}
		if n > 0 {
			lost[int(l.user)] = n
		}
	}
	return lost, nil
}
