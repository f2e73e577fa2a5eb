package api

import (
	"fmt"
	"strconv"
	"time"
)

// How much a spec may have. A node of today has far less.
const (
	maxTenants     = 1000
	maxGrants      = 200  // of one tenant
	maxGrantsTotal = 5000 // of all tenants
	maxEntries     = 200  // below gpus
	maxGPUs        = 128  // that a host has, and that one selector names
	maxMembers     = 2000 // users, and groups, of one tenant
	maxUnits       = 200  // in each list of units
	maxLayout      = 16   // instances of one GPU; no board has more than 8 memory slices
	maxLeases      = 100000
	mostWaiting    = 64 // of one user, for all grants together
	maxSlices      = 8
	maxXIDs        = 200     // that a policy names
	maxTasks       = 4194304 // PID_MAX_LIMIT of the kernel
)

// How little is refused, because nothing could run with it.
const (
	leastGPUMemory  = Bytes(64 << 20)
	leastHostMemory = Bytes(16 << 20)
	leastShare      = Percent(1)
	leastTime       = Duration(time.Second)
	leastHalfLife   = Duration(time.Minute)
)

// Bounds finds amounts that are too small to run anything and counts that are too large. It is no part of Validate: a spec
// that was accepted before stays readable.
func (s *Spec) Bounds() FieldErrors {
	c := &checker{}
	c.most("gpus", "entries", len(s.GPUs), maxEntries)
	c.most("tenants", "tenants", len(s.Tenants), maxTenants)
	if p := s.Node.PerUser; p != nil {
		c.inRange("node.per_user.leases", p.Leases)
		c.least("node.per_user.gpu_memory", p.GPUMemory, leastGPUMemory)
	}
	if q := s.Node.Queue; q != nil {
		c.inRange("node.queue.waiting", q.Waiting)
		if q.HalfLife != nil && *q.HalfLife > 0 && *q.HalfLife < leastHalfLife {
			c.add("node.queue.half_life", "%s is too short: write %s or more", *q.HalfLife, leastHalfLife)
		}
	}
	if i := s.Node.Isolation; i != nil {
		c.most("node.isolation.units", "units", len(i.Units), maxUnits)
	}
	c.most("node.quiesce", "units", len(s.Node.Quiesce), maxUnits)
	s.Node.Health.bounds(c, "node.health")
	if e := s.Node.Engine; e != nil {
		c.most("node.engine.members.users", "users", len(e.Members.Users), maxMembers)
		c.most("node.engine.members.groups", "groups", len(e.Members.Groups), maxMembers)
	}
	for i := range s.GPUs {
		g, at := &s.GPUs[i], fmt.Sprintf("gpus[%d]", i)
		g.Select.bounds(c, at+".select")
		g.Health.bounds(c, at+".health")
		if g.MIG != nil {
			c.most(at+".mig.layout", "instances", len(g.MIG.Layout), maxLayout)
			for j := range g.MIG.Layout {
				n := uint64(g.MIG.Layout[j].Slices)
				c.inRange64(fmt.Sprintf("%s.mig.layout[%d].slices", at, j), &n)
			}
			c.leastTime(at+".mig.keep", g.MIG.Keep)
		}
	}
	grants := 0
	for i := range s.Tenants {
		s.Tenants[i].bounds(c, fmt.Sprintf("tenants[%d]", i))
		grants += len(s.Tenants[i].Grants)
	}
	c.most("tenants", "grants in all", grants, maxGrantsTotal)
	return c.found
}

func (t *TenantSpec) bounds(c *checker, at string) {
	c.most(at+".members.users", "users", len(t.Members.Users), maxMembers)
	c.most(at+".members.groups", "groups", len(t.Members.Groups), maxMembers)
	if t.Adopt != nil {
		c.most(at+".adopt.units", "units", len(t.Adopt.Units), maxUnits)
	}
	if t.PerLogin != nil {
		c.least(at+".per_login.memory", t.PerLogin.Memory, leastHostMemory)
	}
	if t.Memory != nil {
		c.least(at+".memory.max", t.Memory.Max, leastHostMemory)
		c.least(at+".memory.high", t.Memory.High, leastHostMemory)
	}
	c.inRange64(at+".tasks", t.Tasks)
	c.most(at+".grants", "grants", len(t.Grants), maxGrants)
	for j := range t.Grants {
		t.Grants[j].bounds(c, fmt.Sprintf("%s.grants[%d]", at, j))
	}
}

func (g *GrantSpec) bounds(c *checker, at string) {
	if g.Slices > 0 {
		n := uint64(g.Slices)
		c.inRange64(at+".slices", &n)
	}
	for _, s := range []struct {
		key   string
		share *ShareSpec
	}{{"timeslice", g.Timeslice}, {"mps", g.MPS}} {
		if s.share == nil {
			continue
		}
		if p := s.share.Share; p > 0 && p < leastShare {
			c.add(at+"."+s.key+".share", "%s is too small: write %s or more", p, leastShare)
		}
		c.least(at+"."+s.key+".gpu_memory", s.share.GPUMemory, leastGPUMemory)
	}
	c.inRange(at+".exclusive", &g.Exclusive)
	c.inRange(at+".max_leases", g.MaxLeases)
	c.leastTime(at+".max_time", g.MaxTime)
	if g.GPUs != nil {
		g.GPUs.bounds(c, at+".gpus")
	}
}

func (s *Selector) bounds(c *checker, at string) {
	c.most(at+".uuid", "GPUs", len(s.UUID), maxGPUs)
	c.most(at+".pci", "GPUs", len(s.PCI), maxGPUs)
	c.most(at+".index", "GPUs", len(s.Index), maxGPUs)
	c.most(at+".pci_id", "ids", len(s.PCIID), maxGPUs)
	for i := range s.Index {
		c.inRange(element(at+".index", i, len(s.Index)), &s.Index[i])
	}
}

// most refuses a list that is too long.
func (c *checker) most(path, what string, n, most int) {
	if n > most {
		c.add(path, "has %d %s: at most %d are read; remove some", n, what, most)
	}
}

// least refuses an amount that is too small. Validate refuses 0.
func (c *checker) least(path string, b *Bytes, least Bytes) {
	if b != nil && *b > 0 && *b < least {
		c.add(path, "%s would let nothing run: write %s or more, or remove it for no limit", *b, least)
	}
}

// leastTime refuses a time that is too short to be meant. 0 has a meaning, or Validate refuses it.
func (c *checker) leastTime(path string, d *Duration) {
	if d != nil && *d > 0 && *d < leastTime {
		c.add(path, "%s is too short: write %s or more", *d, leastTime)
	}
}

// inRange refuses a number above its range. Validate refuses one that is below.
func (c *checker) inRange(path string, n *int) {
	if n != nil && *n > 0 {
		u := uint64(*n)
		c.inRange64(path, &u)
	}
}

func (c *checker) inRange64(path string, n *uint64) {
	r, ok := RangeOf(path)
	if n != nil && ok && r.Most > 0 && *n > r.Most {
		c.add(path, "%d is out of range: write %s", *n, r)
	}
}

// String is "1 to 8", or "1 or more".
func (r Range) String() string {
	if r.Most == 0 {
		return strconv.FormatUint(r.Least, 10) + " or more"
	}
	return fmt.Sprintf("%d to %d", r.Least, r.Most)
}
