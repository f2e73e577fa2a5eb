package mig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/text"
)

// maxShown is how much of a wrong name a message shows, in bytes.
const maxShown = 80

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
		return ProfileName{}, fmt.Errorf("cannot read MIG profile %q: %s; a profile is written like 3g.20gb or 1g.5gb+me", text.Short(name, maxShown), why)
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
	if n.GB, ok = number(parts[1], "gb"); !ok {
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
			return bad(fmt.Sprintf("it has the unknown attribute %q", text.Short(word, maxShown)))
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
