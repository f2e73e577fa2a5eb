package api

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Validate finds everything that is wrong with the spec by itself, whatever the hardware is. Each finding has its path
// and says what to write instead. Nothing found is nil.
func (s *Spec) Validate() FieldErrors {
	c := &checker{}
	if s.Version == "" {
		c.add("version", "is missing: write version: v1")
	}
	c.word("version", s.Version)
	s.Node.validate(c)
	for i := range s.GPUs {
		s.GPUs[i].validate(c, fmt.Sprintf("gpus[%d]", i))
	}
	checkSelectedTwice(c, s.GPUs)
	names := map[string]int{}
	for i := range s.Tenants {
		at := fmt.Sprintf("tenants[%d]", i)
		s.Tenants[i].validate(c, at)
		c.once(names, s.Tenants[i].Name, i, "tenants", at+".name", "tenant")
	}
	c.tenantRenames(s.Tenants)
	checkAdoptedTwice(c, s.Tenants)
	s.Node.Engine.inTenants(c, s.Tenants)
	return c.found
}

// checkAdoptedTwice refuses that two tenants adopt the same: a process is in one lease. Who is in a tenant by a group is
// known when they log in, and is refused then.
func checkAdoptedTwice(c *checker, tenants []TenantSpec) {
	users, units := map[string]string{}, map[string]string{}
	for i := range tenants {
		t := &tenants[i]
		if t.Adopt == nil {
			continue
		}
		if t.Adopt.Logins != "" {
			for j, u := range t.Members.Users {
				if first, ok := users[u]; ok && first != t.Name {
					c.add(
						fmt.Sprintf("tenants[%d].members.users[%d]", i, j),
						"the logins of %s are adopted by tenant %s already: a user may be in one tenant that adopts logins", u, first,
					)
				} else {
					users[u] = t.Name
				}
			}
		}
		for _, unit := range slices.Sorted(maps.Keys(t.Adopt.Units)) {
			if first, ok := units[unit]; ok && first != t.Name {
				c.add(fmt.Sprintf("tenants[%d].adopt.units.%s", i, unit), "tenant %s adopts it already: a unit may be in one tenant", first)
			} else {
				units[unit] = t.Name
			}
		}
	}
}

// checker gathers findings.
type checker struct{ found FieldErrors }

func (c *checker) add(path, format string, args ...any) {
	c.found = append(c.found, FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// word refuses a word that is not one of those that the key may have; absent is fine.
func (c *checker) word(path string, word string) {
	known := Words(path)
	if word == "" || slices.Contains(known, word) {
		return
	}
	if near, ok := Nearest(word, known); ok && len(known) > 1 {
		c.add(path, "%s is not known: did you mean %s? (known: %s)", quote(word), near, strings.Join(known, ", "))
		return
	}
	c.add(path, "%s is not known: write %s", quote(word), alternatives(known))
}

// once refuses a name that an earlier item of the same list has.
func (c *checker) once(seen map[string]int, name string, i int, list, path, what string) {
	if name == "" {
		return
	}
	if first, ok := seen[name]; ok {
		c.add(path, "%s %q is already at %s[%d]: give each %s a name of its own", what, name, list, first, what)
		return
	}
	seen[name] = i
}

// distinct refuses a value that an earlier item of the same list has.
func (c *checker) distinct(seen map[string]bool, value, path string) {
	if value != "" && seen[value] {
		c.add(path, "%s is already in this list: remove it", quote(value))
	}
	seen[value] = true
}

// name refuses what cannot be part of a cgroup, a unit and a lease id.
func (c *checker) name(path, name, what string) {
	if name == "" {
		c.add(path, "is missing: every %s needs a name", what)
		return
	}
	ok := len(name) <= 31 && name[0] >= 'a' && name[0] <= 'z'
	for _, r := range []byte(name) {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	}
	if !ok {
		c.add(
			path, "%s cannot be the name of a %s: write a lowercase letter, then at most 30 lowercase letters, digits and dashes",
			quote(name), what,
		)
	}
}

func (n *NodeSpec) validate(c *checker) {
	c.word("node.enforce", string(n.Enforce))
	c.word("node.status_visible", n.StatusVisible)
	if i := n.Isolation; i != nil {
		c.word("node.isolation.logins", i.Logins)
		c.word("node.isolation.migration", i.Migration)
		c.word("node.isolation.unattributed", i.Unattributed)
		c.word("node.isolation.unfrozen", i.Unfrozen)
		c.word("node.isolation.attach", i.Attach)
		c.closedUnits("node.isolation.units", i.Units)
	}
	if p := n.PerUser; p != nil {
		p.validate(c, "node.per_user")
	}
	if q := n.Queue; q != nil {
		q.validate(c, "node.queue")
	}
	n.Health.validate(c, "node.health")
	if n.Engine != nil {
		n.Engine.Members.validate(c, "node.engine.members")
		engines := map[string]bool{}
		for i, engine := range n.Engine.Freeze {
			at := fmt.Sprintf("node.engine.freeze[%d]", i)
			c.word(at, engine)
			c.distinct(engines, engine, at)
		}
	}
	seen := map[string]bool{}
	for i, unit := range n.Quiesce {
		at := fmt.Sprintf("node.quiesce[%d]", i)
		c.unit(at, unit, unitKinds...)
		c.distinct(seen, unit, at)
		switch {
		case strings.HasPrefix(unit, "nvidia-fabricmanager"):
			c.add(
				at,
				"the fabric manager must keep running: stopping it aborts every CUDA job behind the NVSwitches; remove it from the list",
			)
		case strings.HasPrefix(unit, "gpushare"):
			c.add(at, "gpushare's own units cannot be stopped by gpushare: remove %s from the list", unit)
		}
	}
}

// closedUnits checks the units that are closed as logins are. The whole system and the logins are no units that run commands of
// users.
func (c *checker) closedUnits(at string, units []string) {
	seen := map[string]bool{}
	for i, unit := range units {
		at := fmt.Sprintf("%s[%d]", at, i)
		c.unit(at, unit, ".service", ".scope", ".slice")
		c.distinct(seen, unit, at)
		switch {
		case unit == "user.slice" || strings.HasPrefix(unit, "user-") || strings.HasPrefix(unit, "user@"):
			c.add(at, "isolation.logins is for logins: remove %s from the list", unit)
		case unit == "-.slice" || unit == "init.scope" || strings.HasPrefix(unit, "gpushare"):
			c.add(at, "%s runs no commands of users: remove it from the list", unit)
		}
	}
}

func (p *PerUserSpec) validate(c *checker, at string) {
	if p.Leases == nil && p.GPUMemory == nil {
		c.add(at, "says nothing: write per_user: {leases: 4, gpu_memory: 40GiB}, one of the two, or remove it")
	}
	if p.Leases != nil && *p.Leases < 1 {
		c.add(at+".leases", "%d is out of range: write 1 or more, or remove it for no limit", *p.Leases)
	}
	c.positive(at+".gpu_memory", p.GPUMemory)
}

func (q *QueueSpec) validate(c *checker, at string) {
	if q.HalfLife == nil && q.Waiting == nil {
		c.add(at, "says nothing: write queue: {half_life: 24h, waiting: 32}, one of the two, or remove it")
	}
	if q.HalfLife != nil && *q.HalfLife <= 0 {
		c.add(at+".half_life", "%s is out of range: write %s or more", *q.HalfLife, leastHalfLife)
	}
	if q.Waiting != nil && *q.Waiting < 1 {
		c.add(at+".waiting", "%d is out of range: write 1 to %d", *q.Waiting, mostWaiting)
	}
}

// unitKinds are the kinds of unit that can be stopped and started, or hold processes.
var unitKinds = []string{".service", ".socket", ".timer", ".target", ".path"}

// unit refuses what is no name of a unit of one of these kinds.
func (c *checker) unit(path, unit string, kinds ...string) {
	if strings.ContainsAny(unit, "/ \t\n*?[") || len(unit) > 255 ||
		!slices.ContainsFunc(kinds, func(s string) bool { return strings.HasSuffix(unit, s) && len(unit) > len(s) }) {
		c.add(path, "%s is no name of a unit: write it with its kind, as in nvidia-dcgm.service", quote(unit))
	}
}

// gpuModes are the modes that can be written.
var gpuModes = Words("gpus[].mode")

func (g *GPUSpec) validate(c *checker, at string) {
	g.Select.validate(c, at+".select")
	switch {
	case g.Mode == "":
		c.add(at+".mode", "is missing: write %s", alternatives(gpuModes))
	case g.Mode == ModeUnmanaged:
		c.add(at+".mode", "unmanaged is what a GPU is that no entry names: remove this entry")
	default:
		c.word(at+".mode", g.Mode)
	}
	for _, b := range []struct {
		mode string
		set  bool
	}{{ModeMIG, g.MIG != nil}, {ModeMPS, g.MPS != nil && g.Mode != ModeMIG}, {ModeTimeslice, g.Timeslice != nil}} {
		if b.set && g.Mode != b.mode && slices.Contains(gpuModes, g.Mode) {
			c.add(at+"."+b.mode, "is only read with mode: %s, and the mode is %s: remove it or change the mode", b.mode, g.Mode)
		}
	}
	if g.Mode == ModeMIG && g.MIG == nil {
		c.add(at+".mig", "is missing: write mig: {layout: [3g.20gb, 2g.10gb]} or mig: {dynamic: true}")
	}
	if g.MIG != nil {
		g.MIG.validate(c, at+".mig")
	}
	if m := g.MPS; m != nil {
		c.word(at+".mps.bypass", m.Bypass)
		g.validateInstanceMPS(c, at+".mps")
	}
	if g.Timeslice != nil && g.Timeslice.Round != nil {
		if r := time.Duration(*g.Timeslice.Round); r < 420*time.Millisecond || r > 10*time.Second {
			c.add(at+".timeslice.round", "%s is out of range: write 420ms to 10s", *g.Timeslice.Round)
		}
	}
	if g.Overcommit && g.Mode != ModeTimeslice && g.Mode != ModeMPS {
		c.add(at+".overcommit", "has no meaning with mode: %s, where leases do not share memory: remove it", g.Mode)
	}
	if h := g.Health; h != nil {
		h.validate(c, at+".health")
		if g.Mode == ModeExternal {
			c.add(at+".health", "has no meaning with mode: external, where gpushare changes nothing: remove it")
		}
	}
	g.validateOwner(c, at)
}

// engines are who may own a GPU that gpushare carves and enforces: leases are theirs by the first word of their keys.
var engines = []string{OwnerSlurm, OwnerKubernetes}

// validateOwner checks who places what runs on the GPU.
func (g *GPUSpec) validateOwner(c *checker, at string) {
	if engine := g.Engine(); engine != "" && !slices.Contains(engines, engine) {
		near := ""
		if word, ok := Nearest(engine, engines); ok {
			near = "did you mean " + word + "? "
		}
		c.add(
			at+".owner", "%s is no engine that places leases of gpushare: %swrite %s, or mode: external, where gpushare changes nothing",
			quote(engine), near, alternatives(engines),
		)
	}
	if len(g.ShareWith) > 0 && g.Engine() == "" {
		c.add(at+".share_with", "is only read with an owner that places leases there, %s: remove it", alternatives(engines))
	}
	seen := map[string]bool{}
	for i, who := range g.ShareWith {
		c.word(fmt.Sprintf("%s.share_with[%d]", at, i), who)
		c.distinct(seen, who, fmt.Sprintf("%s.share_with[%d]", at, i))
	}
}

// validateInstanceMPS checks how MPS runs on the instances of a GPU in MIG mode.
func (g *GPUSpec) validateInstanceMPS(c *checker, at string) {
	switch {
	case g.Mode != ModeMIG:
	case g.MIG == nil || len(g.MIG.MPS) == 0:
		c.add(at, "is only read with mode: mps, or with mode: mig and instances that are shared through MPS: add mig.mps, or remove it")
	case g.MPS.Bypass == BypassDeny:
		c.add(at+".bypass", "deny sets the compute mode of a GPU, and a MIG instance has none: write report or stop")
	}
}

func (m *MIGSpec) validate(c *checker, at string) {
	switch {
	case m.Dynamic && len(m.Layout) > 0:
		c.add(at, "has both a layout and dynamic: keep one of them")
	case !m.Dynamic && len(m.Layout) == 0:
		c.add(at, "says nothing: write layout: [3g.20gb, 2g.10gb] or dynamic: true")
	}
	if m.Keep != nil && !m.Dynamic {
		c.add(at+".keep", "is only read with dynamic: true: a fixed layout always stays; remove it")
	}
	for i := range m.Layout {
		m.Layout[i].validate(c, fmt.Sprintf("%s.layout[%d]", at, i))
	}
	m.validateMPS(c, at+".mps")
}

// validateMPS checks the profiles whose instances are shared through MPS.
func (m *MIGSpec) validateMPS(c *checker, at string) {
	if m.Dynamic && len(m.MPS) > 0 {
		c.add(at, "is only read with a layout: an instance that is created on demand is for one lease; remove it")
		return
	}
	for i := range m.MPS {
		item, path := &m.MPS[i], fmt.Sprintf("%s[%d]", at, i)
		switch {
		case strings.Contains(item.Profile, "c."):
			c.add(
				path,
				"%s has several compute instances, and an MPS control daemon serves one: write a profile without them, as in 3g.20gb",
				quote(item.Profile),
			)
		case !slices.ContainsFunc(m.Layout, func(l LayoutItem) bool { return item.Same(&l) }):
			c.add(path, "%s is not in the layout: write an item of the layout, as it is there, or remove it", item.quoted())
		case slices.ContainsFunc(m.Layout, item.splitBy):
			c.add(
				path,
				"the layout also has %s with several compute instances, and an MPS control daemon serves one: remove those from the layout",
				item.quoted(),
			)
		}
		if slices.ContainsFunc(m.MPS[:i], func(before LayoutItem) bool { return item.Same(&before) }) {
			c.add(path, "%s is already in this list: remove it", item.quoted())
		}
	}
}

// profile refuses what is no MIG profile's name on any device; whether this device has it is for the planner.
func (c *checker) profile(path, p string) {
	if isProfile(p) {
		return
	}
	meant := strings.TrimPrefix(strings.ToLower(strings.TrimSpace(p)), "mig ")
	switch times, one, _ := strings.Cut(meant, "x"); {
	case isProfile(meant):
		c.add(path, "%s is no MIG profile: did you mean %s?", quote(p), meant)
	case digits(times) && isProfile(one):
		c.add(path, "%s is no MIG profile: write %s, once for each instance", quote(p), one)
	default:
		c.add(path, "%s is no MIG profile: write slices and memory, as in 3g.20gb or 1g.10gb+me", quote(p))
	}
}

// severalOf reads the forms in which people write several instances of one profile: 2x1g.5gb, 1g.5gb*2 and 1g.5gb,1g.5gb.
func severalOf(p string) (times int, one string, ok bool) {
	list := strings.FieldsFunc(p, func(r rune) bool { return r == ',' || r == ' ' })
	if len(list) > 1 && isProfile(list[0]) && !slices.ContainsFunc(list, func(s string) bool { return s != list[0] }) {
		return len(list), list[0], true
	}
	n, one, ok := strings.Cut(p, "x")
	if !ok {
		one, n, ok = strings.Cut(p, "*")
	}
	times, err := strconv.Atoi(n)
	return times, one, ok && err == nil && times > 1 && times <= maxLayout && isProfile(one)
}

func isProfile(p string) bool {
	rest := p
	if compute, after, ok := strings.Cut(p, "c."); ok && digits(compute) {
		rest = after
	}
	count, rest, ok := strings.Cut(rest, "g.")
	memory, attributes, _ := strings.Cut(rest, "gb")
	return ok && digits(count) && digits(memory) && (attributes == "" || attributes[0] == '+' || attributes[0] == '-')
}

func (s *Selector) validate(c *checker, at string) {
	set := 0
	for _, is := range []bool{len(s.UUID) > 0, len(s.PCI) > 0, len(s.Index) > 0, len(s.PCIID) > 0, s.Model != "", s.All} {
		if is {
			set++
		}
	}
	switch {
	case set == 0:
		c.add(at, "selects nothing: write one of uuid, pci, index, pci_id, model, or all: true")
	case set > 1:
		c.add(at, "has %d fields: write exactly one of uuid, pci, index, pci_id, model, all", set)
	}
	seen := map[string]bool{}
	for i, u := range s.UUID {
		p := element(at+".uuid", i, len(s.UUID))
		if !strings.HasPrefix(u, "GPU-") || len(u) == 4 || strings.ContainsAny(u, " \t\n*") {
			c.add(p, "%s is no GPU's UUID: write it as the driver prints it, GPU-…", quote(u))
		}
		c.distinct(seen, u, p)
	}
	for i, a := range s.PCI {
		p := element(at+".pci", i, len(s.PCI))
		canonical, ok := CanonicalPCI(a)
		if !ok {
			c.add(p, "%s is no PCI address: write it as in 0000:07:00.0", quote(a))
		}
		c.distinct(seen, canonical, p)
	}
	for i, n := range s.Index {
		p := element(at+".index", i, len(s.Index))
		if n < 0 {
			c.add(p, "%d is no index: the first GPU is 0", n)
		}
		c.distinct(seen, strconv.Itoa(n), p)
	}
	for i, id := range s.PCIID {
		p := element(at+".pci_id", i, len(s.PCIID))
		parsed, ok := ParsePCIID(id)
		if !ok {
			c.add(
				p,
				"%s is no PCI id: write vendor and device, as in 10de:20b0, or those of the subsystem too, as in 10de:20b0:10de:134f",
				quote(id),
			)
			continue
		}
		c.distinct(seen, parsed.String(), p)
	}
	if _, err := path.Match(s.Model, ""); err != nil {
		c.add(at+".model", "%s is no pattern: write the model with * for what may differ, as in \"NVIDIA H200*\"", quote(s.Model))
	}
}

// checkSelectedTwice finds the ties that can be seen without the hardware: two entries with one and the same selector.
func checkSelectedTwice(c *checker, gpus []GPUSpec) {
	first := map[string]int{}
	claim := func(i int, path, key, what string) {
		if f, ok := first[key]; ok && f != i {
			c.add(path, "%s is also selected by gpus[%d]: a GPU belongs to one entry; remove it from one of them", what, f)
			return
		}
		first[key] = i
	}
	for i := range gpus {
		s, at := &gpus[i].Select, fmt.Sprintf("gpus[%d].select", i)
		for j, u := range s.UUID {
			claim(i, element(at+".uuid", j, len(s.UUID)), "uuid "+u, u)
		}
		for j, a := range s.PCI {
			if p, ok := CanonicalPCI(a); ok {
				claim(i, element(at+".pci", j, len(s.PCI)), "pci "+p, a)
			}
		}
		for j, n := range s.Index {
			claim(i, element(at+".index", j, len(s.Index)), "index "+strconv.Itoa(n), "GPU "+strconv.Itoa(n))
		}
		for j, id := range s.PCIID {
			if p, ok := ParsePCIID(id); ok {
				claim(i, element(at+".pci_id", j, len(s.PCIID)), "pci_id "+p.String(), id)
			}
		}
		if s.Model != "" {
			claim(i, at+".model", "model "+s.Model, "model "+s.Model)
		}
		if s.All {
			claim(i, at+".all", "all", "every GPU")
		}
	}
}

func (t *TenantSpec) validate(c *checker, at string) {
	c.name(at+".name", t.Name, "tenant")
	t.Members.validate(c, at+".members")
	if t.PerLogin != nil {
		if t.PerLogin.Memory == nil {
			c.add(at+".per_login", "says nothing: write per_login: {memory: 32GiB} or remove it")
		}
		c.positive(at+".per_login.memory", t.PerLogin.Memory)
	}
	if cpu := t.CPU; cpu != nil {
		if cpu.Quota != nil && *cpu.Quota < 1 {
			c.add(at+".cpu.quota", "%s is too little to run anything: write 1%% or more, 100%% is one CPU", *cpu.Quota)
		}
		c.weight(at+".cpu.weight", cpu.Weight)
		c.word(at+".cpu.numa", cpu.NUMA)
	}
	if m := t.Memory; m != nil {
		c.positive(at+".memory.max", m.Max)
		c.positive(at+".memory.high", m.High)
		if m.Max != nil && m.High != nil && *m.High > *m.Max {
			c.add(at+".memory.high", "%s is above max (%s) and would never act: write less than max", *m.High, *m.Max)
		}
	}
	if t.Tasks != nil && *t.Tasks == 0 {
		c.add(at+".tasks", "0 tasks cannot run anything: write 1 or more, or remove it for no limit")
	}
	if t.IO != nil {
		c.weight(at+".io.weight", t.IO.Weight)
	}
	c.word(at+".priority", t.Priority)
	c.word(at+".preempt", t.Preempt)
	c.word(at+".on_removal", t.OnRemoval)
	if t.Preempt == PreemptStop && t.Priority == "high" {
		c.add(at+".preempt", "has no effect with priority: high, because no tenant has a higher priority: remove it")
	}
	seen := map[string]bool{}
	for i, d := range t.Devices {
		p := fmt.Sprintf("%s.devices[%d]", at, i)
		if d == "" {
			c.add(p, "is empty: write rdma, fuse or dri")
		}
		c.word(p, d)
		c.distinct(seen, d, p)
	}
	if t.Overuse != nil {
		c.word(at+".overuse.gpu_memory", t.Overuse.GPUMemory)
	}
	names := map[string]int{}
	for i := range t.Grants {
		p := fmt.Sprintf("%s.grants[%d]", at, i)
		t.Grants[i].validate(c, p)
		c.once(names, t.Grants[i].Name, i, at+".grants", p+".name", "grant")
	}
	c.grantRenames(at, t.Grants)
	if t.Adopt != nil {
		t.Adopt.validate(c, at+".adopt", t.Grants)
	}
}

func (m *Members) validate(c *checker, at string) {
	for _, list := range []struct {
		key, what string
		names     []string
	}{{"users", "user", m.Users}, {"groups", "group", m.Groups}} {
		seen := map[string]bool{}
		for i, n := range list.names {
			p := fmt.Sprintf("%s.%s[%d]", at, list.key, i)
			if !nameOfHost(n) {
				c.add(p, "%s cannot be the name of a %s: write the name that the host knows, as getent prints it", quote(n), list.what)
			}
			c.distinct(seen, n, p)
		}
	}
}

// nameOfHost reports whether a user or a group may have the name. Directories have names with spaces, and a domain before them:
// "CORP\domain users", "domain users@corp.example". No name has what separates fields and members in passwd and group.
func nameOfHost(n string) bool {
	return n != "" && len(n) <= 255 && !strings.ContainsAny(n, ":,*") && !strings.ContainsFunc(n, unicode.IsControl) && n[0] != '-' &&
		strings.TrimSpace(n) == n
}

func (a *AdoptSpec) validate(c *checker, at string, grants []GrantSpec) {
	var names []string
	for _, g := range grants {
		if g.Name != "" {
			names = append(names, g.Name)
		}
	}
	known := func(path, grant string) {
		if slices.Contains(names, grant) {
			return
		}
		switch near, ok := Nearest(grant, names); {
		case len(names) == 0:
			c.add(path, "the tenant has no grant %s: add it under grants", quote(grant))
		case ok:
			c.add(path, "the tenant has no grant %s: did you mean %s?", quote(grant), near)
		default:
			c.add(path, "the tenant has no grant %s: write %s", quote(grant), alternatives(names))
		}
	}
	if a.Logins != "" {
		known(at+".logins", a.Logins)
	}
	for _, unit := range slices.Sorted(maps.Keys(a.Units)) {
		p := at + ".units." + unit
		c.unit(p, unit, unitKinds...)
		if kind := path.Ext(unit); kind != "" && kind != ".service" && kind != ".scope" && kind != ".slice" {
			c.add(p, "a %s has no processes of its own: write a service, a scope or a slice", kind[1:])
		}
		known(p, a.Units[unit])
	}
}

func (g *GrantSpec) validate(c *checker, at string) {
	c.name(at+".name", g.Name, "grant")
	var kinds []string
	for _, k := range []struct {
		key string
		set bool
	}{
		{"mig", g.MIG != ""},
		{"slices", g.Slices > 0},
		{"timeslice", g.Timeslice != nil},
		{"mps", g.MPS != nil},
		{"exclusive", g.Exclusive != 0},
	} {
		if k.set {
			kinds = append(kinds, k.key)
		}
	}
	switch {
	case len(kinds) == 0:
		c.add(at, "grants nothing: write one of mig, slices, timeslice, mps, exclusive")
	case len(kinds) > 1 && !(len(kinds) == 2 && g.InInstance()):
		c.add(at, "grants %s at once: keep exactly one and give the other a grant of its own", strings.Join(kinds, " and "))
	}
	if times, one, several := severalOf(g.MIG); several {
		c.add(
			at+".mig",
			"%s is several instances, and a lease has one, because a CUDA program uses one MIG device: write mig: %s, max_leases: %d, and run each process in a lease of its own",
			quote(g.MIG),
			one,
			times,
		)
	} else if g.MIG != "" {
		c.profile(at+".mig", g.MIG)
	}
	if g.Slices == 0 && g.GPUMemory != "" {
		c.add(at+".gpu_memory", "is only read with slices: write it inside timeslice or mps, or remove it")
	} else if g.GPUMemory != "" {
		c.leastMemory(at+".gpu_memory", g.GPUMemory)
	}
	if g.Slices == 0 && len(g.Attributes) > 0 {
		c.add(at+".attributes", "is only read with slices: remove it, or write the attribute into the profile as in 1g.10gb+me")
	}
	c.attributes(at+".attributes", g.Attributes)
	if g.Timeslice != nil {
		g.Timeslice.validate(c, at+".timeslice")
	}
	if g.MPS != nil {
		g.MPS.validate(c, at+".mps")
		if g.MPS.Cap != nil {
			c.add(at+".mps.cap", "is only read under timeslice; remove it")
		}
	}
	if g.Exclusive < 0 {
		c.add(at+".exclusive", "%d is no number of GPUs: write 1 or more", g.Exclusive)
	}
	if g.GPUs != nil {
		g.GPUs.validate(c, at+".gpus")
	}
	if g.MaxLeases != nil && *g.MaxLeases < 1 {
		c.add(at+".max_leases", "%d allows no lease: write 1 or more, or remove the grant", *g.MaxLeases)
	}
	if g.MaxTime != nil && *g.MaxTime <= 0 {
		c.add(at+".max_time", "0 would end every lease at once: write a duration such as 24h, or remove it for no limit")
	}
	if g.Idle != nil {
		g.Idle.validate(c, at+".idle")
	}
	c.word(at+".accept", g.Accept)
	g.validateLatency(c, at)
	if g.InInstance() {
		g.validateInInstance(c, at)
	}
	if s := cmp.Or(g.Timeslice, g.MPS); g.Accept != "" && len(kinds) == 1 && (s == nil || s.GPUMemory == nil) {
		c.add(at+".accept", "is only read for a limit of GPU memory under timeslice or mps: write gpu_memory there, or remove it")
	}
}

// validateLatency refuses latency where it would change nothing, or cannot be kept.
func (g *GrantSpec) validateLatency(c *checker, at string) {
	c.word(at+".latency", g.Latency)
	switch s := g.Timeslice; {
	case g.Latency != LatencyLow:
	case s == nil:
		c.add(at+".latency", "is only read with timeslice, where leases wait for one another: remove it")
	case s.Cap != nil:
		c.add(
			at+".latency",
			"is not possible with timeslice.cap, which freezes the lease also while the GPU is idle: remove one of the two",
		)
	case s.Share > MostLowLatency && s.Share <= 100:
		c.add(
			at+".timeslice.share",
			"%s is more than the grants with latency: low may have of one GPU together: write %s or less, or remove latency",
			s.Share,
			MostLowLatency,
		)
	}
}

// validateInInstance refuses what a share of a MIG instance cannot have.
func (g *GrantSpec) validateInInstance(c *checker, at string) {
	if g.Reserved {
		c.add(at+".reserved", "is not possible for a share of a MIG instance: remove it, or reserve a whole instance")
	}
	if g.Accept == AcceptHard {
		c.add(
			at+".accept",
			"a share of a MIG instance has no hard limit of GPU memory: the driver limits the memory of whole GPUs only; write best-effort, or remove it",
		)
	}
}

// The range of idle.after: shorter, a pause between two steps of a program would count as idle.
const (
	leastIdle = 10 * time.Second
	mostIdle  = 30 * 24 * time.Hour
)

func (i *IdleSpec) validate(c *checker, at string) {
	switch after := time.Duration(i.After); {
	case after == 0:
		c.add(at+".after", "is missing or 0: write how long a lease may be idle, %s to %s", Duration(leastIdle), Duration(mostIdle))
	case after < leastIdle || after > mostIdle:
		c.add(at+".after", "%s is out of range: write %s to %s", i.After, Duration(leastIdle), Duration(mostIdle))
	}
	c.word(at+".do", i.Do)
}

func (s *ShareSpec) validate(c *checker, at string) {
	switch {
	case s.Share == 0:
		c.add(at+".share", "is missing or 0%%: write how much of the GPU, as in 40%%")
	case s.Share > 100:
		c.add(at+".share", "%s is more than the whole GPU: write 100%% or less", s.Share)
	}
	c.positive(at+".gpu_memory", s.GPUMemory)
	if s.Cap != nil && (*s.Cap > 100 || *s.Cap < s.Share) {
		c.add(at+".cap", "%s is out of range: write %s (the share) to 100%%", *s.Cap, s.Share)
	}
}

func (c *checker) positive(path string, b *Bytes) {
	if b != nil && *b == 0 {
		c.add(path, "0 bytes would let nothing run: write an amount such as 16GiB, or remove it for no limit")
	}
}

func (c *checker) weight(path string, w *uint64) {
	if w != nil && (*w < 1 || *w > 10000) {
		c.add(path, "%d is out of range: write 1 to 10000, 100 is usual", *w)
	}
}

// element is the path of one of n values of a list that may be written without brackets when there is one.
func element(at string, i, n int) string {
	if n == 1 {
		return at
	}
	return fmt.Sprintf("%s[%d]", at, i)
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// quote keeps a hostile value from flooding a message.
func quote(s string) string { return strconv.Quote(short(s)) }

// short does the same without quotes.
func short(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

func alternatives(words []string) string {
	if n := len(words); n > 16 { // names, not words of the spec
		return strings.Join(words[:12], ", ") + fmt.Sprintf(" or one of %d others", n-12)
	}
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
