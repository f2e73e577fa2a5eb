// Package scenarios is the changes of a node in which tests make calls of the driver fail: what there is before, what is
// wanted, and who is in the way. It is a description only: a test in one process carries it out under virtual time, another
// on the shipped programs.
package scenarios

import (
	"fmt"
	"slices"
	"strings"
)

// Board is one GPU of a virtual node.
type Board struct {
	Model string // its short name
	MIG   bool   // its mode is on from the first boot
}

// Scenario is one change of a node: from one layout to another, GPU by GPU.
type Scenario struct {
	Name   string
	Boards []Board
	// From and To say for each GPU which instances it has, between spaces; "off": none and no MIG mode; "": the GPU is
	// nobody's business yet.
	From, To   []string
	AllowReset bool   // the request may reset a GPU
	Force      bool   // and may stop who is in the way
	Busy       string // the profile of an instance of GPU 0 that somebody is in
	Foreign    string // the profile of an instance of GPU 0 that somebody else makes beside ours
	Boots      bool   // what happens is a boot, and no request
	Reloads    bool   // it is not the host but the driver that is loaded anew

	// Changes is how many calls change GPU 0 when none fails. The tests count them.
	Changes int
}

// All are the changes.
func All() []Scenario {
	a100, h100 := Board{"a100-40", true}, Board{"h100-80", true}
	a100Off, h100Off := Board{"a100-40", false}, Board{"h100-80", false}
	one := func(s string) []string { return []string{s} }
	return []Scenario{
		{Name: "one more beside what is there", Boards: []Board{a100}, From: one("3g.20gb"), To: one("3g.20gb 1g.5gb"), Changes: 2},
		{
			Name: "one more beside somebody who works", Boards: []Board{a100}, Changes: 2,
			From: one("3g.20gb 1g.5gb 1g.5gb 1g.5gb"), To: one("3g.20gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb"), Busy: "3g.20gb",
		},
		{Name: "seven from nothing", Boards: []Board{a100}, From: one(""), To: one(strings.Repeat("1g.5gb ", 7)), Changes: 14},
		{Name: "seven become one", Boards: []Board{a100}, From: one(strings.Repeat("1g.5gb ", 7)), To: one("7g.40gb"), Changes: 16},
		{Name: "one becomes four", Boards: []Board{a100}, From: one("7g.40gb"), To: one("3g.20gb 2g.10gb 1g.5gb 1g.5gb"), Changes: 10},
		{Name: "round somebody who works", Boards: []Board{a100}, From: one("1g.5gb 3g.20gb 1g.10gb"), To: one("1g.5gb 2g.10gb 2g.10gb"), Busy: "1g.5gb", Changes: 8},
		{Name: "round somebody else's", Boards: []Board{a100}, From: one("3g.20gb"), To: one("2g.10gb 1g.5gb"), Foreign: "1g.10gb", Changes: 6},
		{Name: "over somebody who is stopped", Boards: []Board{a100}, From: one("3g.20gb 1g.5gb"), To: one("7g.40gb"), Busy: "3g.20gb", Force: true, Changes: 6},
		{Name: "two GPUs at once", Boards: []Board{a100, a100}, From: []string{"7g.40gb", "3g.20gb 3g.20gb"}, To: []string{"4g.20gb 3g.20gb", "2g.10gb 2g.10gb 1g.5gb"}, Changes: 6},
		{Name: "the mode and two", Boards: []Board{h100Off}, From: one("off"), To: one("3g.40gb 1g.10gb"), Changes: 5},
		{Name: "two go, and the mode", Boards: []Board{h100}, From: one("3g.40gb 4g.40gb"), To: one("off"), Changes: 5},
		{Name: "the mode by a reset", Boards: []Board{a100Off, a100}, From: []string{"off", "3g.20gb"}, To: []string{"3g.20gb", "3g.20gb"}, AllowReset: true, Changes: 3},
		{Name: "compute instances that share", Boards: []Board{a100}, From: one("1c.3g.20gb 2c.3g.20gb"), To: one("1c.3g.20gb 1c.3g.20gb 1c.3g.20gb"), Changes: 7},
		{Name: "after a boot", Boards: []Board{a100, a100}, From: []string{"3g.20gb 2g.10gb", "1g.5gb 4g.20gb"}, To: []string{"3g.20gb 2g.10gb", "1g.5gb 4g.20gb"}, Boots: true, Changes: 4},
		{Name: "after a reload of the driver", Boards: []Board{a100}, From: one("3g.20gb 1g.10gb"), To: one("3g.20gb 1g.10gb"), Boots: true, Reloads: true, Changes: 4},
	}
}

// Query is the authority of the request, as it stands in its address.
func (s *Scenario) Query() string {
	var words []string
	if s.AllowReset {
		words = append(words, "allow-reset=1")
	}
	if s.Force {
		words = append(words, "force=1")
	}
	if len(words) == 0 {
		return ""
	}
	return "?" + strings.Join(words, "&")
}

// The memory limit of the tenant in GiB, before and after: walls change with the hardware.
const (
	MemoryFrom = 8
	MemoryTo   = 9
)

// SpecFrom is what holds before.
func (s *Scenario) SpecFrom() string { return spec(s.From, MemoryFrom) }

// SpecTo is what is wanted. A boot changes nothing of that.
func (s *Scenario) SpecTo() string {
	if s.Boots {
		return s.SpecFrom()
	}
	return spec(s.To, MemoryTo)
}

// spec writes layouts as a spec, with a grant for each profile.
func spec(layouts []string, memory int) string {
	var b strings.Builder
	b.WriteString("version: v1\nnode: {enforce: on, isolation: {logins: open}}\ngpus:\n")
	grants := map[string]bool{}
	for i, l := range layouts {
		switch l {
		case "":
		case "off":
			fmt.Fprintf(&b, "  - {select: {index: %d}, mode: timeslice}\n", i)
		default:
			list := strings.Fields(l)
			fmt.Fprintf(&b, "  - {select: {index: %d}, mode: mig, mig: {layout: [%s]}}\n", i, strings.Join(list, ", "))
			for _, p := range list {
				if !strings.Contains(p, "c.") {
					grants[p] = true
				}
			}
		}
	}
	fmt.Fprintf(&b, "tenants:\n  - name: red\n    memory: {max: %dGiB}\n    grants:\n", memory)
	for _, p := range sorted(grants) {
		fmt.Fprintf(&b, "      - {name: %s, mig: %s}\n", Grant(p), p)
	}
	if len(grants) == 0 {
		b.WriteString("      - {name: slices, timeslice: {share: 50%, gpu_memory: 4GiB}}\n")
	}
	return b.String()
}

func sorted(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Grant is the name of the tenant's grant of a profile.
func Grant(profile string) string { return "g" + strings.ReplaceAll(profile, ".", "-") }

// Wanted is which instances a GPU has after the change, by name in order; beside are those of others on GPU 0.
func (s *Scenario) Wanted(i int, beside []string) []string {
	var out []string
	if s.To[i] != "off" {
		out = strings.Fields(s.To[i])
	}
	if i == 0 {
		out = append(out, beside...)
	}
	slices.Sort(out)
	return out
}
