package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// LayoutItem is one instance of a layout: by the name of its profile, or by properties as in a grant. A name is written as
// text, properties as an object. By properties it is the smallest profile of the GPU that has them: drivers may name a profile
// differently after an upgrade, and properties stay.
type LayoutItem struct {
	Slices     uint32   `json:"slices,omitempty"`
	GPUMemory  string   `json:"gpu_memory,omitempty"` // with slices: ">=38GiB"
	Attributes []string `json:"attributes,omitempty"`
	Profile    string   `json:"-"` // a profile name
}

// LayoutOf is a layout of names.
func LayoutOf(names ...string) []LayoutItem {
	out := make([]LayoutItem, len(names))
	for i, n := range names {
		out[i].Profile = n
	}
	return out
}

// UnmarshalJSON reads a name or an object.
func (l *LayoutItem) UnmarshalJSON(b []byte) error {
	if t := bytes.TrimSpace(b); len(t) > 0 && t[0] == '"' {
		*l = LayoutItem{}
		return json.Unmarshal(b, &l.Profile)
	}
	type object LayoutItem
	var o object
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	*l = LayoutItem(o)
	return nil
}

// MarshalJSON writes a name as text.
func (l LayoutItem) MarshalJSON() ([]byte, error) {
	if l.Profile != "" {
		return json.Marshal(l.Profile)
	}
	type object LayoutItem
	return json.Marshal(object(l))
}

// String is the item as the spec has it.
func (l *LayoutItem) String() string {
	if l.Profile != "" {
		return l.Profile
	}
	parts := []string{"slices: " + strconv.FormatUint(uint64(l.Slices), 10)}
	if l.GPUMemory != "" {
		parts = append(parts, fmt.Sprintf("gpu_memory: %q", l.GPUMemory))
	}
	if len(l.Attributes) > 0 {
		parts = append(parts, "attributes: ["+strings.Join(l.Attributes, ", ")+"]")
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// LeastMemory is the memory that the item needs at least; 0 for any.
func (l *LayoutItem) LeastMemory() Bytes {
	b, _ := leastMemory(l.GPUMemory) // Validate refuses what cannot be read.
	return b
}

// Same reports whether two items are written for the same instances.
func (l *LayoutItem) Same(m *LayoutItem) bool {
	a, b := slices.Sorted(slices.Values(l.Attributes)), slices.Sorted(slices.Values(m.Attributes))
	return l.Profile == m.Profile && l.Slices == m.Slices && l.LeastMemory() == m.LeastMemory() && slices.Equal(a, b)
}

func (l *LayoutItem) validate(c *checker, at string) {
	switch {
	case l.Profile != "":
		c.profile(at, l.Profile)
		return
	case l.Slices == 0 && l.GPUMemory == "" && len(l.Attributes) == 0:
		c.add(at, "says nothing: write a profile, as in 3g.20gb, or its properties, as in {slices: 3, gpu_memory: \">=19GiB\"}")
	case l.Slices == 0:
		c.add(at+".slices", "is missing: write how many compute slices the instance has, as in slices: 3")
	}
	if l.GPUMemory != "" {
		c.leastMemory(at+".gpu_memory", l.GPUMemory)
	}
	c.attributes(at+".attributes", l.Attributes)
}

// leastMemory refuses what is no condition such as ">=38GiB".
func (c *checker) leastMemory(path, condition string) {
	if b, ok := leastMemory(condition); !ok {
		c.add(path, "%s is no least amount of memory: write it as in \">=%s\"", quote(condition), cmp.Or(b, 38<<30))
	}
}

// attributes refuses what no profile has.
func (c *checker) attributes(at string, list []string) {
	for i, a := range list {
		if p := fmt.Sprintf("%s[%d]", at, i); a == "" {
			c.add(p, "is empty: write me, me.all, -me or gfx")
		} else {
			c.word(p, a)
		}
	}
}

// quoted is the item in a message.
func (l *LayoutItem) quoted() string {
	if l.Profile != "" {
		return quote(l.Profile)
	}
	return short(l.String())
}

// splitBy reports whether an item of the same layout is a compute instance in an instance like this one.
func (l *LayoutItem) splitBy(o LayoutItem) bool {
	if l.Profile != "" {
		return strings.HasSuffix(o.Profile, "c."+l.Profile)
	}
	return strings.Contains(o.Profile, fmt.Sprintf("c.%dg.", l.Slices))
}

// leastMemory reads a condition such as ">=38GiB".
func leastMemory(condition string) (Bytes, bool) {
	b, err := ParseBytes(strings.TrimSpace(strings.TrimPrefix(condition, ">=")))
	return b, err == nil && b > 0 && strings.HasPrefix(condition, ">=")
}
