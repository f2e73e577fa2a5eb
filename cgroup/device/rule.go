package device

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// MaxMinor is the largest minor of a device in the kernel.
const MaxMinor = 1<<20 - 1

// Rule allows one device.
type Rule struct {
	Type   byte   `json:"type"` // 'c' or 'b'
	Major  uint32 `json:"major"`
	Minor  uint32 `json:"minor"`
	Access string `json:"access"` // of "r", "w", "m"
}

// Range is the devices of one type and major, from the first minor to the last.
type Range struct {
	Type  byte   `json:"type"` // 'c' or 'b'
	Major uint32 `json:"major"`
	First uint32 `json:"first"`
	Last  uint32 `json:"last"`
}

// All is the range of all minors of a character device's major.
func All(major uint32) Range { return Range{Type: 'c', Major: major, Last: MaxMinor} }

// Has reports whether a device is in the range.
func (r Range) Has(typ byte, major, minor uint32) bool {
	return r.Type == typ && r.Major == major && r.First <= minor && minor <= r.Last
}

// String is the range for people: "c 195:0-3".
func (r Range) String() string {
	switch {
	case r.First == 0 && r.Last == MaxMinor:
		return fmt.Sprintf("%c %d:*", r.Type, r.Major)
	case r.First == r.Last:
		return fmt.Sprintf("%c %d:%d", r.Type, r.Major, r.First)
	}
	return fmt.Sprintf("%c %d:%d-%d", r.Type, r.Major, r.First, r.Last)
}

// The kernel's bits (linux/bpf.h).
const (
	typeBlock = 1
	typeChar  = 2
	mayMake   = 1
	mayRead   = 2
	mayWrite  = 4
)

func typeBits(t byte) (uint32, error) {
	switch t {
	case 'c':
		return typeChar, nil
	case 'b':
		return typeBlock, nil
	}
	return 0, fmt.Errorf("invalid device type %q: write c or b", t)
}

func typeOf(bits uint32) byte {
	if bits == typeBlock {
		return 'b'
	}
	return 'c'
}

func accessBits(s string) (uint32, error) {
	bits := uint32(0)
	for _, c := range []byte(s) {
		switch c {
		case 'r':
			bits |= mayRead
		case 'w':
			bits |= mayWrite
		case 'm':
			bits |= mayMake
		default:
			return 0, fmt.Errorf("invalid device access %q: write some of r, w and m", s)
		}
	}
	return bits, nil
}

func accessOf(bits uint32) string {
	var b strings.Builder
	for _, a := range []struct {
		bit  uint32
		char byte
	}{{mayRead, 'r'}, {mayWrite, 'w'}, {mayMake, 'm'}} {
		if bits&a.bit != 0 {
			b.WriteByte(a.char)
		}
	}
	return b.String()
}

func compareRules(a, b Rule) int {
	return cmp.Or(
		cmp.Compare(a.Type, b.Type), cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor), cmp.Compare(a.Access, b.Access),
	)
}

// joinRanges sorts ranges and merges those that touch or overlap, so that two lists of the same devices are equal.
func joinRanges(in []Range) []Range {
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(a, b Range) int {
		return cmp.Or(
			cmp.Compare(a.Type, b.Type), cmp.Compare(a.Major, b.Major), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last),
		)
	})
	out := sorted[:0]
	for _, r := range sorted {
		if last := len(out) - 1; last >= 0 && out[last].Type == r.Type && out[last].Major == r.Major && r.First <= out[last].Last+1 {
			out[last].Last = max(out[last].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}
