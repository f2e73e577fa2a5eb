package isolation

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/text"
)

// The kinds of steps.
const (
	KindSet    = "slice.set"    // arguments: cgroup.Slice; undo: Previous
	KindRemove = "slice.remove" // arguments: cgroup.SliceName; undo: Previous
)

// Previous is the slice before a step. nil: there was none.
type Previous struct {
	Slice *cgroup.Slice
}

// Use is the current use of a slice.
type Use struct {
	Leases  []string
	Memory  uint64              // bytes
	Tasks   uint64              // processes and threads
	CPU     float64             // percent of one CPU, as in cpu.quota
	Devices []cgroup.DeviceRule // granted devices that its processes have open
	// Unattributed are the processes of no lease in it.
	Unattributed []step.Subject
}

// Plan returns the steps from the observed slices to the desired ones; none when nothing differs that can be enforced
// here. A slice that changes both ways has two steps: one restricts it to what both allow, and one grants the rest. Plan
// does not consider the use of the slices: see PlanInUse.
func Plan(desired []cgroup.Slice, observed []cgroup.SliceState, info cgroup.Info) []step.Step {
	return PlanInUse(desired, observed, info, nil)
}

// PlanInUse is Plan with the disruption of each step.
func PlanInUse(desired []cgroup.Slice, observed []cgroup.SliceState, info cgroup.Info, use map[cgroup.SliceName]Use) []step.Step {
	var steps []step.Step
	for _, want := range inOrder(desired) {
		i := slices.IndexFunc(observed, func(s cgroup.SliceState) bool { return s.Name == want.Name })
		if i < 0 {
			steps = append(steps, step.Step{
				Kind: KindSet, Phase: step.GrantAccess, Args: step.Must(want), Undo: step.Must(Previous{}),
				Text: fmt.Sprintf("create the cgroup slice of %s: %s", want.Name, describe(info.Expect(want))), Reason: "it does not exist",
				Disruption: step.None,
			})
			continue
		}
		is := asSlice(observed[i])
		if equal(is, want, info) {
			continue // as nearly always
		}
		restricted := restrict(is, want)
		if !equal(is, restricted, info) {
			s := step.Step{
				Kind:       KindSet,
				Phase:      step.RevokeAccess,
				Args:       step.Must(restricted),
				Undo:       step.Must(Previous{&is}),
				Text:       fmt.Sprintf("restrict the cgroup slice of %s: %s", want.Name, difference(is, restricted, info)),
				Reason:     "it allows more than it should",
				Disruption: step.None,
			}
			if below := useBelow(is, restricted, info, use[want.Name]); len(below) > 0 {
				s.Disruption, s.Disturbs = step.Running, subjectsIn(want.Name, use[want.Name])
				s.Reason += ", and " + strings.Join(below, ", ")
			}
			steps = append(steps, s)
		}
		if !equal(restricted, want, info) {
			steps = append(steps, step.Step{
				Kind:       KindSet,
				Phase:      step.GrantAccess,
				Args:       step.Must(want),
				Undo:       step.Must(Previous{&restricted}),
				Text:       fmt.Sprintf("change the cgroup slice of %s: %s", want.Name, difference(restricted, want, info)),
				Reason:     "it differs from the spec",
				Disruption: step.None,
			})
		}
	}
	// Grants come before their tenants: a slice that has children cannot be removed.
	var removed []cgroup.SliceState
	for _, s := range observed {
		if s.Name.Tenant != "" && !slices.ContainsFunc(desired, func(d cgroup.Slice) bool { return d.Name == s.Name }) {
			removed = append(removed, s)
		}
	}
	slices.SortFunc(removed, func(a, b cgroup.SliceState) int { return compareNames(b.Name, a.Name) })
	for _, s := range removed {
		before := asSlice(s)
		st := step.Step{
			Kind: KindRemove, Phase: step.RevokeAccess, Args: step.Must(s.Name), Undo: step.Must(Previous{&before}),
			Text: fmt.Sprintf("remove the cgroup slice of %s", s.Name), Reason: "the spec does not name it",
			Disruption: step.Idle,
		}
		if u := use[s.Name]; len(u.Leases)+len(u.Unattributed) > 0 {
			st.Disruption, st.Disturbs = step.Running, subjectsIn(s.Name, u)
		}
		steps = append(steps, st)
	}
	// All steps that revoke access come before all that grant access, over all slices.
	slices.SortStableFunc(steps, func(a, b step.Step) int { return phaseOrder(a.Phase) - phaseOrder(b.Phase) })
	return steps
}

func phaseOrder(p step.Phase) int {
	return slices.Index([]step.Phase{step.RevokeAccess, step.Change, step.GrantAccess}, p)
}

// inOrder sorts slices so that a tenant's comes before its grants'.
func inOrder(s []cgroup.Slice) []cgroup.Slice {
	s = slices.Clone(s)
	slices.SortStableFunc(s, func(a, b cgroup.Slice) int { return compareNames(a.Name, b.Name) })
	return s
}

func compareNames(a, b cgroup.SliceName) int {
	if c := strings.Compare(a.Tenant, b.Tenant); c != 0 {
		return c
	}
	return strings.Compare(a.Grant, b.Grant)
}

func asSlice(s cgroup.SliceState) cgroup.Slice {
	return cgroup.Slice{Name: s.Name, Limits: s.Limits, Closed: s.Closed, Devices: s.Devices}
}

// equal reports whether two slices are equal in what can be enforced here.
func equal(a, b cgroup.Slice, info cgroup.Info) bool {
	a = info.Expect(a)
	return cgroup.SliceState{Name: a.Name, Limits: a.Limits, Closed: a.Closed, Devices: a.Devices}.Matches(info.Expect(b))
}

// restrict returns the slice with only what both is and want allow. Weights allow nothing, so the second step changes them.
// It also changes the CPUs when both lists have none in common, because processes cannot run without a CPU.
func restrict(is, want cgroup.Slice) cgroup.Slice {
	out := is
	out.Limits.CPUQuota = lower(is.Limits.CPUQuota, want.Limits.CPUQuota)
	out.Limits.MemoryMax = lower(is.Limits.MemoryMax, want.Limits.MemoryMax)
	out.Limits.MemoryHigh = lower(is.Limits.MemoryHigh, want.Limits.MemoryHigh)
	out.Limits.SwapMax = lower(is.Limits.SwapMax, want.Limits.SwapMax)
	out.Limits.TasksMax = lower(is.Limits.TasksMax, want.Limits.TasksMax)
	out.Limits.CPUs = commonCPUs(is.Limits.CPUs, want.Limits.CPUs)
	out.Closed = is.Closed || want.Closed
	switch {
	case !is.Closed:
		out.Devices = want.Devices
	case want.Closed:
		out.Devices = commonRules(is.Devices, want.Devices)
	}
	return out
}

// lower is the smaller of two limits; nil means no limit.
func lower[T uint64 | float64](a, b *T) *T {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

// commonCPUs is the CPUs of both lists; the empty list is all. When there are none, or a list cannot be read, it is the
// first.
func commonCPUs(a, b string) string {
	switch {
	case a == "":
		return b
	case b == "":
		return a
	}
	in, err := cgroup.ParseCPUs(a)
	of, err2 := cgroup.ParseCPUs(b)
	if err != nil || err2 != nil {
		return a
	}
	both := slices.DeleteFunc(in, func(n int) bool { return !slices.Contains(of, n) })
	if len(both) == 0 {
		return a
	}
	return cgroup.FormatCPUs(both)
}

// commonRules is what both sets of rules allow.
func commonRules(a, b []cgroup.DeviceRule) []cgroup.DeviceRule {
	var out []cgroup.DeviceRule
	of := cgroup.SortRules(b)
	for _, r := range cgroup.SortRules(a) {
		i := slices.IndexFunc(of, func(o cgroup.DeviceRule) bool { return o.Type == r.Type && o.Major == r.Major && o.Minor == r.Minor })
		if i < 0 {
			continue
		}
		r.Access = strings.Map(func(c rune) rune {
			if strings.ContainsRune(of[i].Access, c) {
				return c
			}
			return -1
		}, r.Access)
		if r.Access == "" {
			continue
		}
		if r.Name == "" {
			r.Name = of[i].Name
		}
		out = append(out, r)
	}
	return out
}

// useBelow lists what is in use above the restricted limits, and which open devices the restricted slice does not allow.
// It is empty when no process is disturbed.
func useBelow(is, restricted cgroup.Slice, info cgroup.Info, use Use) []string {
	from, to := info.Expect(is).Limits, info.Expect(restricted).Limits
	var out []string
	if fallsBelow(to.MemoryMax, from.MemoryMax, use.Memory) || fallsBelow(to.MemoryHigh, from.MemoryHigh, use.Memory) {
		out = append(out, text.Bytes(use.Memory)+" of memory are in use")
	}
	if fallsBelow(to.TasksMax, from.TasksMax, use.Tasks) {
		out = append(out, fmt.Sprintf("%d tasks run", use.Tasks))
	}
	if fallsBelow(to.CPUQuota, from.CPUQuota, use.CPU) {
		out = append(out, fmt.Sprintf("%.0f%% of a CPU are in use", use.CPU))
	}
	if e := info.Expect(restricted); e.Closed {
		var open []string
		for _, r := range cgroup.SortRules(use.Devices) {
			if len(commonRules([]cgroup.DeviceRule{r}, e.Devices)) == 0 {
				open = append(open, nodeName(r))
			}
		}
		if len(open) > 0 {
			out = append(out, firstFew(open)+" is open")
		}
	}
	return out
}

// fallsBelow reports whether a limit is lowered to less than what is in use.
func fallsBelow[T uint64 | float64](limit, before *T, used T) bool {
	return limit != nil && (before == nil || *limit < *before) && *limit < used
}

// subjectsIn are the leases and unattributed processes in a slice.
func subjectsIn(name cgroup.SliceName, use Use) []step.Subject {
	if subjects := slices.Concat(leasesIn(use), use.Unattributed); len(subjects) > 0 {
		return subjects
	}
	return []step.Subject{step.MembersOf(name.String())}
}

// leasesIn are the leases in a slice.
func leasesIn(use Use) []step.Subject {
	var out []step.Subject
	for _, id := range use.Leases {
		out = append(out, step.LeaseOf(id, ""))
	}
	return out
}

// Difference describes for people how an observed slice differs from the desired one: from desired to observed.
func Difference(want cgroup.Slice, found cgroup.SliceState, info cgroup.Info) string {
	return difference(want, asSlice(found), info)
}

// difference describes for people what changes from one slice to the other, in what can be enforced here.
func difference(from, to cgroup.Slice, info cgroup.Info) string {
	a, b := info.Expect(from), info.Expect(to)
	var parts []string
	before, after := Limits(a.Limits, text.Bytes), Limits(b.Limits, text.Bytes)
	for i := range before {
		if before[i].Value != after[i].Value {
			parts = append(parts, fmt.Sprintf("%s %s → %s", before[i].Name, orNone(before[i].Value), orNone(after[i].Value)))
		}
	}
	switch {
	case a.Closed && !b.Closed:
		parts = append(parts, "all devices are open")
	case !a.Closed && b.Closed:
		parts = append(parts, "devices closed")
		a.Devices = nil
	}
	for _, r := range b.Devices {
		if !hasRule(a.Devices, r) {
			parts = append(parts, "+"+nodeName(r))
		}
	}
	for _, r := range a.Devices {
		if b.Closed && !hasRule(b.Devices, r) {
			parts = append(parts, "-"+nodeName(r))
		}
	}
	return strings.Join(parts, ", ")
}

// describe describes for people what a slice allows.
func describe(s cgroup.Slice) string {
	var parts []string
	for _, l := range Limits(s.Limits, text.Bytes) {
		if l.Value != "" {
			parts = append(parts, l.Name+" "+l.Value)
		}
	}
	if s.Closed {
		parts = append(parts, fmt.Sprintf("%d devices", len(s.Devices)))
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return strings.Join(parts, ", ")
}

func hasRule(rules []cgroup.DeviceRule, r cgroup.DeviceRule) bool {
	r.Name = ""
	return slices.ContainsFunc(rules, func(o cgroup.DeviceRule) bool { o.Name = ""; return o == r })
}

// nodeName is the name of a rule's node, or its numbers when the name is unknown: the kernel does not store names. Of the
// driver's majors only that of the GPUs is the same on every host.
func nodeName(r cgroup.DeviceRule) string {
	switch {
	case r.Name != "":
		return r.Name
	case r.Type == 'c' && r.Major == gpuMajor && r.Minor == controlMinor:
		return "/dev/nvidiactl"
	case r.Type == 'c' && r.Major == gpuMajor && r.Minor <= lastGPU:
		return fmt.Sprintf("/dev/nvidia%d", r.Minor)
	}
	return fmt.Sprintf("%c %d:%d", r.Type, r.Major, r.Minor)
}

// Limit is one limit of a slice as text.
type Limit struct {
	Kind  string // of cgroup.LimitNames
	Name  string // in the spec
	Value string // empty for no limit
}

// Limits returns every limit with its name in the spec, in a fixed order. size formats amounts of memory.
func Limits(l cgroup.Limits, size func(uint64) string) []Limit {
	number := func(n *uint64, write func(uint64) string) string {
		if n == nil {
			return ""
		}
		return write(*n)
	}
	digits := func(n uint64) string { return strconv.FormatUint(n, 10) }
	quota := ""
	if l.CPUQuota != nil {
		quota = strconv.FormatFloat(math.Round(*l.CPUQuota*100)/100, 'f', -1, 64) + "%"
	}
	return []Limit{
		{"cpu", "cpu.quota", quota},
		{"cpu", "cpu.weight", number(l.CPUWeight, digits)},
		{"cpuset", "cpu.numa", l.CPUs},
		{"memory", "memory.max", number(l.MemoryMax, size)},
		{"memory", "memory.high", number(l.MemoryHigh, size)},
		{"memory", "memory.swap", number(l.SwapMax, size)},
		{"tasks", "tasks", number(l.TasksMax, digits)},
		{"io", "io.weight", number(l.IOWeight, digits)},
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
