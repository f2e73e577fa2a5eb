// Package scenarios describes the changes of a node in which tests let driver calls fail: the state before, the desired state,
// and what is in use. One test runs them in one process under virtual time, another on the shipped programs.
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
	// From and To list the instances of each GPU, separated by spaces. "off": no MIG mode; "": the GPU is unmanaged.
	From, To   []string
	AllowReset bool   // the request may reset a GPU
	Force      bool   // and may stop leases in the way
	Busy       string // the profile of an instance of GPU 0 that is in use
	Foreign    string // the profile of a foreign instance of GPU 0
	Boots      bool   // a boot instead of a request
	Driver     string // the version of the driver; empty: the usual one of the test
	Reloads    bool   // the boot is only a reload of the driver

	// Changes is the number of calls that change GPU 0 if none fails. The tests check it.
	Changes int
}

// All are the changes.
func All() []Scenario {
	a100, h100 := Board{"a100-40", true}, Board{"h100-80", true}
	a100Off, h100Off := Board{"a100-40", false}, Board{"h100-80", false}
	one := func(s string) []string { return []string{s} }
	return []Scenario{
		{Name: "one more instance", Boards: []Board{a100}, From: one("3g.20gb"), To: one("3g.20gb 1g.5gb"), Changes: 2},
		{
			Name: "one more with one in use", Boards: []Board{a100}, Changes: 2,
			From: one("3g.20gb 1g.5gb 1g.5gb 1g.5gb"), To: one("3g.20gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb"), Busy: "3g.20gb",
		},
		{Name: "seven from nothing", Boards: []Board{a100}, From: one(""), To: one(strings.Repeat("1g.5gb ", 7)), Changes: 14},
		{Name: "seven become one", Boards: []Board{a100}, From: one(strings.Repeat("1g.5gb ", 7)), To: one("7g.40gb"), Changes: 16},
		{Name: "one becomes four", Boards: []Board{a100}, From: one("7g.40gb"), To: one("3g.20gb 2g.10gb 1g.5gb 1g.5gb"), Changes: 10},
		{
			Name:    "around one in use",
			Boards:  []Board{a100},
			From:    one("1g.5gb 3g.20gb 1g.10gb"),
			To:      one("1g.5gb 2g.10gb 2g.10gb"),
			Busy:    "1g.5gb",
			Changes: 8,
		},
		{
			Name:    "around a foreign one",
			Boards:  []Board{a100},
			From:    one("3g.20gb"),
			To:      one("2g.10gb 1g.5gb"),
			Foreign: "1g.10gb",
			Changes: 6,
		},
		{
			Name:    "over a stopped lease",
			Boards:  []Board{a100},
			From:    one("3g.20gb 1g.5gb"),
			To:      one("7g.40gb"),
			Busy:    "3g.20gb",
			Force:   true,
			Changes: 6,
		},
		{
			Name:    "two GPUs at once",
			Boards:  []Board{a100, a100},
			From:    []string{"7g.40gb", "3g.20gb 3g.20gb"},
			To:      []string{"4g.20gb 3g.20gb", "2g.10gb 2g.10gb 1g.5gb"},
			Changes: 6,
		},
		{Name: "MIG mode and two", Boards: []Board{h100Off}, From: one("off"), To: one("3g.40gb 1g.10gb"), Changes: 5},
		{Name: "none and no MIG mode", Boards: []Board{h100}, From: one("3g.40gb 4g.40gb"), To: one("off"), Changes: 5},
		{
			Name:       "MIG mode by a reset",
			Boards:     []Board{a100Off, a100},
			From:       []string{"off", "3g.20gb"},
			To:         []string{"3g.20gb", "3g.20gb"},
			AllowReset: true,
			Changes:    3,
		},
		{
			Name:    "compute instances that share",
			Boards:  []Board{a100},
			From:    one("1c.3g.20gb 2c.3g.20gb"),
			To:      one("1c.3g.20gb 1c.3g.20gb 1c.3g.20gb"),
			Changes: 7,
		},
		{
			Name:    "after a boot",
			Boards:  []Board{a100, a100},
			From:    []string{"3g.20gb 2g.10gb", "1g.5gb 4g.20gb"},
			To:      []string{"3g.20gb 2g.10gb", "1g.5gb 4g.20gb"},
			Boots:   true,
			Changes: 4,
		},
		{
			Name:    "MIG mode and two, where profiles need the mode",
			Driver:  "550.163.01",
			Boards:  []Board{h100Off},
			From:    one("off"),
			To:      one("3g.40gb 1g.10gb"),
			Changes: 5,
		},
		{
			Name:       "MIG mode by a reset, where profiles need the mode",
			Driver:     "535.183.01",
			Boards:     []Board{a100Off},
			From:       one("off"),
			To:         one("3g.20gb"),
			AllowReset: true,
			Changes:    3,
		},
		{
			Name:    "after a boot that ends MIG mode",
			Driver:  "550.163.01",
			Boards:  []Board{h100Off},
			From:    one("3g.40gb 1g.10gb"),
			To:      one("3g.40gb 1g.10gb"),
			Boots:   true,
			Changes: 5,
		},
		{
			Name:    "after a reload of the driver",
			Boards:  []Board{a100},
			From:    one("3g.20gb 1g.10gb"),
			To:      one("3g.20gb 1g.10gb"),
			Boots:   true,
			Reloads: true,
			Changes: 4,
		},
	}
}

// Query is the authority of the request, in the query of its URL.
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

// The memory limit of the tenant in GiB, before and after: limits change together with the hardware.
const (
	MemoryFrom = 8
	MemoryTo   = 9
)

// SpecFrom is the spec before the change.
func (s *Scenario) SpecFrom() string { return spec(s.From, MemoryFrom) }

// SpecTo is the desired spec. A boot does not change it.
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

// Desired is the sorted names of the instances of a GPU after the change; foreign are the foreign ones of GPU 0.
func (s *Scenario) Desired(i int, foreign []string) []string {
	var out []string
	if s.To[i] != "off" {
		out = strings.Fields(s.To[i])
	}
	if i == 0 {
		out = append(out, foreign...)
	}
	slices.Sort(out)
	return out
}
