package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// GIName is the name of the GPU instance profile with this id on this device.
func (ps *Profiles) GIName(id uint32) string {
	if ps != nil {
		for i := range ps.GI {
			if ps.GI[i].ID == id {
				return ps.GI[i].Name
			}
		}
	}
	return fmt.Sprintf("profile %d", id)
}

// ProfileName is a parsed profile name as NVIDIA writes it: "3g.20gb", "1g.5gb+me", "1c.3g.20gb",
// "1g.24gb-me", "2g.48gb+me.all".
type ProfileName struct {
	Compute    uint32   // compute slices of one compute instance; 0 when the name has no such part: all of them
	Slices     uint32   // compute slices of the GPU instance
	GB         uint32   // the memory in the name. It is rounded: the exact size is Profile.Memory
	Attributes []string // "me", "me.all", "gfx", "-me"; sorted, each once
}

// String returns the name.
func (n ProfileName) String() string {
	var b strings.Builder
	if n.Compute != 0 {
		fmt.Fprintf(&b, "%dc.", n.Compute)
	}
	fmt.Fprintf(&b, "%dg.%dgb", n.Slices, n.GB)
	for _, a := range n.Attributes {
		if !strings.HasPrefix(a, "-") {
			b.WriteByte('+')
		}
		b.WriteString(a)
	}
	return b.String()
}

// ParseProfile parses a profile name. It checks the form, not whether a device has the profile.
func ParseProfile(name string) (ProfileName, error) {
	bad := func(why string) (ProfileName, error) {
		return ProfileName{}, fmt.Errorf("cannot read MIG profile %q: %s; a profile is written like 3g.20gb or 1g.5gb+me", shown(name), why)
	}
	var n ProfileName
	end := strings.IndexAny(name, "+-")
	body, tail := name, ""
	if end >= 0 {
		body, tail = name[:end], name[end:]
	}
	parts := strings.Split(body, ".")
	if len(parts) == 3 {
		c, ok := number(parts[0], "c")
		if !ok {
			return bad("the compute part is not a number followed by c")
		}
		n.Compute, parts = c, parts[1:]
	}
	if len(parts) != 2 {
		return bad("it does not have the parts <slices>g.<memory>gb")
	}
	var ok bool
	if n.Slices, ok = number(parts[0], "g"); !ok {
		return bad("the slices are not a number followed by g")
	}
	// An integrated GPU has no memory of its own, and its profiles are named so (Jetson Linux guide, section on MIG).
	if n.GB, ok = number(parts[1], "gb"); !ok && parts[1] != "0gb" {
		return bad("the memory is not a number followed by gb")
	}
	if n.Compute > n.Slices {
		return bad("a compute instance cannot have more slices than its GPU instance")
	}
	for tail != "" {
		sign := tail[0]
		next := strings.IndexAny(tail[1:], "+-,")
		word := tail[1:]
		if next >= 0 {
			word, tail = tail[1:1+next], tail[1+next:]
		} else {
			tail = ""
		}
		if sign == '-' {
			word = "-" + word
		}
		switch word {
		case "me", "me.all", "gfx", "-me":
		default:
			return bad(fmt.Sprintf("it has the unknown attribute %q", shown(word)))
		}
		n.Attributes = append(n.Attributes, word)
	}
	slices.Sort(n.Attributes)
	n.Attributes = slices.Compact(n.Attributes)
	return n, nil
}

// number parses a positive number, without sign or leading zero, that is followed by unit.
func number(s, unit string) (uint32, bool) {
	digits, ok := strings.CutSuffix(s, unit)
	if !ok || digits == "" || digits[0] < '1' || digits[0] > '9' {
		return 0, false
	}
	v, err := strconv.ParseUint(digits, 10, 32)
	return uint32(v), err == nil
}

// shown is how much of a wrong name a message shows.
func shown(name string) string {
	if len(name) <= maxShown {
		return name
	}
	return strings.ToValidUTF8(name[:maxShown], "") + "…"
}

// maxShown is in bytes.
const maxShown = 80

// SameProfile reports whether two names are of one profile: boards and drivers name one profile differently (1g.23gb or
// 1g.24gb), so the memory in the names may differ by 5 %.
func SameProfile(a, b string) bool {
	if a == b {
		return true
	}
	m, err := ParseProfile(a)
	if err != nil {
		return false
	}
	n, err := ParseProfile(b)
	return err == nil && m.Same(n)
}

// Same is SameProfile for names that were parsed. A compute instance with all slices is its GPU instance.
func (n ProfileName) Same(m ProfileName) bool {
	if n.Slices != m.Slices || n.part() != m.part() || !slices.Equal(n.Attributes, m.Attributes) {
		return false
	}
	lo, hi := uint64(min(m.GB, n.GB)), uint64(max(m.GB, n.GB))
	return (hi-lo)*100 <= hi*5
}

// part is the compute slices, 0 for all.
func (n ProfileName) part() uint32 {
	if n.Compute == n.Slices {
		return 0
	}
	return n.Compute
}

// ComputeName is the name of a compute instance of so many slices in an instance of a profile: 1c.3g.20gb. It is that of the
// instance if the driver does not report the slices.
func ComputeName(instance string, slices uint32) string {
	if slices == 0 {
		return instance
	}
	return fmt.Sprintf("%dc.%s", slices, instance)
}
