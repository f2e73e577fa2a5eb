package device

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const (
	guardName  = "gpushare_guard"
	closedName = "gpushare_closed"
	exceptName = "gpushare_except"
)

// anyMinor and Anyone stand for all. Neither is a minor or a user: the kernel uses -1 for "none".
const (
	anyMinor = 1<<32 - 1
	Anyone   = 1<<32 - 1
)

// Exception lets a user open a device that is closed.
type Exception struct {
	UID  uint32 `json:"uid"` // as seen from the host, real and not effective; Anyone is everybody
	Rule Rule   `json:"rule"`
}

// Guard denies the processes of a cgroup what is Closed, unless an exception lets them. Root is let through: the host's,
// not that of a user namespace. To make a node is no opening of it and is nothing to the guard.
type Guard struct {
	Closed []Range     `json:"closed,omitempty"`
	Except []Exception `json:"except,omitempty"`
}

// Equal tells whether two guards act the same.
func (g Guard) Equal(o Guard) bool {
	a, b := g.Canonical(), o.Canonical()
	return slices.Equal(a.Closed, b.Closed) && slices.Equal(a.Except, b.Except)
}

// Canonical is the guard as it reads back: ranges joined, exceptions sorted and those to nothing that is closed left out.
func (g Guard) Canonical() Guard {
	out := Guard{Closed: joinRanges(g.Closed)}
	type who struct {
		uid uint32
		numbers
	}
	access := map[who]uint32{}
	for _, e := range g.Except {
		t, err := typeBits(e.Rule.Type)
		bits, err2 := accessBits(e.Rule.Access)
		if err != nil || err2 != nil || !out.closes(e.Rule) {
			continue
		}
		access[who{e.UID, numbers{t, e.Rule.Major, e.Rule.Minor}}] |= bits &^ mayMake
	}
	for w, bits := range access {
		if bits == 0 {
			continue
		}
		out.Except = append(out.Except, Exception{w.uid, Rule{Type: typeOf(w.numbers[0]), Major: w.numbers[1], Minor: w.numbers[2], Access: accessOf(bits)}})
	}
	slices.SortFunc(out.Except, func(a, b Exception) int { return cmp.Or(cmp.Compare(a.UID, b.UID), compareRules(a.Rule, b.Rule)) })
	return out
}

func (g Guard) closes(r Rule) bool {
	return slices.ContainsFunc(g.Closed, func(c Range) bool { return c.Has(r.Type, r.Major, r.Minor) })
}

// exceptKey is an exception as a key of a map: user, type, major, minor.
type exceptKey [4]uint32

// SetGuard puts the guard onto a cgroup, given by its directory, in the place of the one that is there. It writes
// nothing, and says so, when the cgroup has exactly this guard.
func SetGuard(dir string, g Guard) (wrote bool, err error) {
	want := g.Canonical()
	closed, except, err := want.lists()
	if err != nil {
		return false, fmt.Errorf("cannot make a device guard: %w", err)
	}
	return setProgram(dir, program{
		name:         guardName,
		instructions: guardProgram,
		maps: func() []*ebpf.MapSpec {
			return []*ebpf.MapSpec{listOf(closedName, closed), listOf(exceptName, except)}
		},
		same: func(p *ebpf.Program) (bool, error) {
			is, err := readGuard(p)
			return err == nil && is.Equal(want), err
		},
	})
}

// ReadGuard reads the guard of a cgroup back. ok is false when it has none. Where there are several, after an accident,
// what any of them closes is closed, and the exceptions are those of the first.
func ReadGuard(dir string) (g Guard, ok bool, err error) {
	err = forEachProgram(dir, guardName, func(p *ebpf.Program) error {
		is, err := readGuard(p)
		if err != nil {
			return err
		}
		if !ok {
			g.Except = is.Except
		}
		g.Closed, ok = joinRanges(append(g.Closed, is.Closed...)), true
		return nil
	})
	return g, ok, err
}

// RemoveGuard takes the guard off a cgroup. It is no error when it has none.
func RemoveGuard(dir string) (removed bool, err error) { return removeProgram(dir, guardName) }

// maxClosed bounds how many single devices are closed: a list of more is a mistake.
const maxClosed = 1 << 16

func (g Guard) lists() (closed map[numbers]uint32, except map[exceptKey]uint32, err error) {
	closed, except = map[numbers]uint32{}, map[exceptKey]uint32{}
	for _, r := range g.Closed {
		t, err := typeBits(r.Type)
		if err != nil {
			return nil, nil, err
		}
		if r.First == 0 && r.Last == MaxMinor {
			closed[numbers{t, r.Major, anyMinor}] = 1
			continue
		}
		if r.Last > MaxMinor || r.First > r.Last || int(r.Last-r.First)+len(closed) > maxClosed {
			return nil, nil, fmt.Errorf("%v is no range of devices that can be closed", r)
		}
		for minor := r.First; minor <= r.Last; minor++ {
			closed[numbers{t, r.Major, minor}] = 1
		}
	}
	for _, e := range g.Except {
		t, err := typeBits(e.Rule.Type)
		if err != nil {
			return nil, nil, err
		}
		bits, err := accessBits(e.Rule.Access)
		if err != nil {
			return nil, nil, err
		}
		except[exceptKey{e.UID, t, e.Rule.Major, e.Rule.Minor}] = bits
	}
	return closed, except, nil
}

func readGuard(p *ebpf.Program) (Guard, error) {
	info, err := p.Info()
	if err != nil {
		return Guard{}, err
	}
	closed, except := map[numbers]uint32{}, map[exceptKey]uint32{}
	if _, err := readMap(info, closedName, closed); err != nil {
		return Guard{}, err
	}
	if _, err := readMap(info, exceptName, except); err != nil {
		return Guard{}, err
	}
	var g Guard
	for k := range closed {
		r := Range{Type: typeOf(k[0]), Major: k[1], First: k[2], Last: k[2]}
		if k[2] == anyMinor {
			r.First, r.Last = 0, MaxMinor
		}
		g.Closed = append(g.Closed, r)
	}
	for k, bits := range except {
		g.Except = append(g.Except, Exception{k[0], Rule{Type: typeOf(k[1]), Major: k[2], Minor: k[3], Access: accessOf(bits)}})
	}
	return g.Canonical(), nil
}

// Where the guard keeps the key of an exception on its stack, 16 bytes.
const who = -32

// guardProgram denies what is closed. The helper tells the real user in the host's user namespace, so root of a user
// namespace is the user that made it, and so is who runs a setuid program.
func guardProgram() asm.Instructions {
	p := loadDevice()
	p = append(p,
		asm.Mov.Reg(asm.R8, asm.R2),
		asm.Mov.Reg(asm.R9, asm.R4),
		asm.And.Imm(asm.R7, mayRead|mayWrite),
		asm.JEq.Imm(asm.R7, 0, "allow"),
	)
	p = append(p, lookup(closedName, keyOffset)...)
	p = append(p,
		asm.JNE.Imm(asm.R0, 0, "closed"),
		asm.StoreImm(asm.RFP, keyOffset+8, -1, asm.Word), // anyMinor
	)
	p = append(p, lookup(closedName, keyOffset)...)
	p = append(p,
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.FnGetCurrentUidGid.Call().WithSymbol("closed"),
		asm.Mov.Reg32(asm.R0, asm.R0), // the lower half is the user
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.StoreMem(asm.RFP, who, asm.R0, asm.Word),
		asm.StoreMem(asm.RFP, who+4, asm.R8, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, ctxMajor, asm.Word),
		asm.StoreMem(asm.RFP, who+8, asm.R3, asm.Word),
		asm.StoreMem(asm.RFP, who+12, asm.R9, asm.Word),
	)
	p = append(p, lookup(exceptName, who)...)
	p = append(p,
		asm.JNE.Imm(asm.R0, 0, "judge"),
		asm.StoreImm(asm.RFP, who, -1, asm.Word), // Anyone
	)
	p = append(p, lookup(exceptName, who)...)
	p = append(p, asm.JEq.Imm(asm.R0, 0, "deny"))
	p = append(p, checkAccess()...)
	return append(p, allowOrDeny()...)
}
