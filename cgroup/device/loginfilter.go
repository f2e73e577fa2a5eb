package device

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const (
	filterName    = "gpushare_logins"
	closedMapName = "gpushare_closed"
	exceptMapName = "gpushare_except"
)

// anyMinor and AnyUser mean all minors and all users. Neither is a valid minor or user id: the kernel uses -1 for "none".
const (
	anyMinor = 1<<32 - 1
	AnyUser  = 1<<32 - 1
)

// Exception lets a user open a device that is closed.
type Exception struct {
	UID  uint32 `json:"uid"` // the real user id in the host's user namespace; AnyUser for all users
	Rule Rule   `json:"rule"`
}

// LoginFilter denies the processes of a cgroup the devices in Closed, unless an exception allows them. The host's root is
// always allowed, root of a user namespace is not. Creating a device node is always allowed.
type LoginFilter struct {
	Closed []Range     `json:"closed,omitempty"`
	Except []Exception `json:"except,omitempty"`
}

// Equal reports whether two filters have the same effect.
func (f LoginFilter) Equal(o LoginFilter) bool {
	a, b := f.Canonical(), o.Canonical()
	return slices.Equal(a.Closed, b.Closed) && slices.Equal(a.Except, b.Except)
}

// Canonical returns the filter as it reads back: ranges joined, exceptions sorted, and exceptions for devices that are not
// closed removed.
func (f LoginFilter) Canonical() LoginFilter {
	out := LoginFilter{Closed: joinRanges(f.Closed)}
	type exceptTarget struct {
		uid uint32
		numbers
	}
	access := map[exceptTarget]uint32{}
	for _, e := range f.Except {
		t, err := typeBits(e.Rule.Type)
		bits, err2 := accessBits(e.Rule.Access)
		if err != nil || err2 != nil || !out.closes(e.Rule) {
			continue
		}
		access[exceptTarget{e.UID, numbers{t, e.Rule.Major, e.Rule.Minor}}] |= bits &^ mayMake
	}
	for w, bits := range access {
		if bits == 0 {
			continue
		}
		out.Except = append(
			out.Except,
			Exception{w.uid, Rule{Type: typeOf(w.numbers[0]), Major: w.numbers[1], Minor: w.numbers[2], Access: accessOf(bits)}},
		)
	}
	slices.SortFunc(out.Except, func(a, b Exception) int { return cmp.Or(cmp.Compare(a.UID, b.UID), compareRules(a.Rule, b.Rule)) })
	return out
}

func (f LoginFilter) closes(r Rule) bool {
	return slices.ContainsFunc(f.Closed, func(c Range) bool { return c.Has(r.Type, r.Major, r.Minor) })
}

// exceptKey identifies an exception in a map: user, type, major, minor.
type exceptKey [4]uint32

// SetLoginFilter sets or replaces the login filter of the cgroup with the directory dir. When the cgroup has exactly this
// filter, it writes nothing and returns wrote = false.
func SetLoginFilter(dir string, f LoginFilter) (wrote bool, err error) {
	want := f.Canonical()
	closed, except, err := want.lists()
	if err != nil {
		return false, fmt.Errorf("cannot set a login filter: %w", err)
	}
	return setProgram(dir, program{
		name:         filterName,
		instructions: filterProgram,
		maps: func() []*ebpf.MapSpec {
			return []*ebpf.MapSpec{listOf(closedMapName, closed), listOf(exceptMapName, except)}
		},
		same: func(p *ebpf.Program) (bool, error) {
			is, err := readLoginFilter(p)
			return err == nil && is.Equal(want), err
		},
	})
}

// ReadLoginFilter reads the login filter of a cgroup back. ok is false when it has none. When several are attached,
// because a change was interrupted, the result closes what any of them closes, and has the exceptions of the first.
func ReadLoginFilter(dir string) (f LoginFilter, ok bool, err error) {
	err = forEachProgram(dir, filterName, func(p *ebpf.Program) error {
		is, err := readLoginFilter(p)
		if err != nil {
			return err
		}
		if !ok {
			f.Except = is.Except
		}
		f.Closed, ok = joinRanges(append(f.Closed, is.Closed...)), true
		return nil
	})
	return f, ok, err
}

// RemoveLoginFilter removes the login filter of a cgroup. It is no error when it has none.
func RemoveLoginFilter(dir string) (removed bool, err error) { return removeProgram(dir, filterName) }

// maxClosed bounds the number of single closed devices. A longer list is a mistake.
const maxClosed = 1 << 16

func (f LoginFilter) lists() (closed map[numbers]uint32, except map[exceptKey]uint32, err error) {
	closed, except = map[numbers]uint32{}, map[exceptKey]uint32{}
	for _, r := range f.Closed {
		t, err := typeBits(r.Type)
		if err != nil {
			return nil, nil, err
		}
		if r.First == 0 && r.Last == MaxMinor {
			closed[numbers{t, r.Major, anyMinor}] = 1
			continue
		}
		if r.Last > MaxMinor || r.First > r.Last || int(r.Last-r.First)+len(closed) > maxClosed {
			return nil, nil, fmt.Errorf("cannot close the range %v: it is invalid or too long", r)
		}
		for minor := r.First; minor <= r.Last; minor++ {
			closed[numbers{t, r.Major, minor}] = 1
		}
	}
	for _, e := range f.Except {
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

func readLoginFilter(p *ebpf.Program) (LoginFilter, error) {
	info, err := p.Info()
	if err != nil {
		return LoginFilter{}, err
	}
	closed, except := map[numbers]uint32{}, map[exceptKey]uint32{}
	if _, err := readMap(info, closedMapName, closed); err != nil {
		return LoginFilter{}, err
	}
	if _, err := readMap(info, exceptMapName, except); err != nil {
		return LoginFilter{}, err
	}
	var f LoginFilter
	for k := range closed {
		r := Range{Type: typeOf(k[0]), Major: k[1], First: k[2], Last: k[2]}
		if k[2] == anyMinor {
			r.First, r.Last = 0, MaxMinor
		}
		f.Closed = append(f.Closed, r)
	}
	for k, bits := range except {
		f.Except = append(f.Except, Exception{k[0], Rule{Type: typeOf(k[1]), Major: k[2], Minor: k[3], Access: accessOf(bits)}})
	}
	return f.Canonical(), nil
}

// The stack offset at which the program keeps the key of an exception, 16 bytes.
const exceptOffset = -32

// filterProgram denies closed devices. bpf_get_current_uid_gid returns the real user id in the host's user namespace. So
// root of a user namespace counts as the user that created it, and a setuid program as the user that started it.
func filterProgram() asm.Instructions {
	p := loadDevice()
	p = append(p,
		asm.Mov.Reg(asm.R8, asm.R2),
		asm.Mov.Reg(asm.R9, asm.R4),
		asm.And.Imm(asm.R7, mayRead|mayWrite),
		asm.JEq.Imm(asm.R7, 0, "allow"),
	)
	p = append(p, lookup(closedMapName, keyOffset)...)
	p = append(p,
		asm.JNE.Imm(asm.R0, 0, "closed"),
		asm.StoreImm(asm.RFP, keyOffset+8, -1, asm.Word), // anyMinor
	)
	p = append(p, lookup(closedMapName, keyOffset)...)
	p = append(p,
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.FnGetCurrentUidGid.Call().WithSymbol("closed"),
		asm.Mov.Reg32(asm.R0, asm.R0), // the lower half is the user id
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.StoreMem(asm.RFP, exceptOffset, asm.R0, asm.Word),
		asm.StoreMem(asm.RFP, exceptOffset+4, asm.R8, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, ctxMajor, asm.Word),
		asm.StoreMem(asm.RFP, exceptOffset+8, asm.R3, asm.Word),
		asm.StoreMem(asm.RFP, exceptOffset+12, asm.R9, asm.Word),
	)
	p = append(p, lookup(exceptMapName, exceptOffset)...)
	p = append(p,
		asm.JNE.Imm(asm.R0, 0, "check"),
		asm.StoreImm(asm.RFP, exceptOffset, -1, asm.Word), // AnyUser
	)
	p = append(p, lookup(exceptMapName, exceptOffset)...)
	p = append(p, asm.JEq.Imm(asm.R0, 0, "deny"))
	p = append(p, checkAccess()...)
	return append(p, allowOrDeny()...)
}
