package api

import (
	"strings"
	"time"
)

// Defaults of the spec.
const (
	DefaultGPUMemoryReserve = Bytes(1 << 30)
	DefaultHalfLife         = Duration(24 * time.Hour)
	DefaultQueueWaiting     = 32
	DefaultKeep             = Duration(5 * time.Minute)
	DefaultRound            = Duration(time.Second)
	DefaultOveruseGrace     = Duration(10 * time.Second)
	// DefaultOveruse is what happens above a limit of GPU memory that is written: a limit limits. Versions before it was kill had
	// EarlierDefaultOveruse.
	DefaultOveruse        = "kill"
	EarlierDefaultOveruse = "notify"
)

// Normalize sets the defaults and the canonical spelling of each value. The spec must have passed Validate. It is
// idempotent.
func (s *Spec) Normalize() {
	s.Node.normalize()
	for i := range s.GPUs {
		s.GPUs[i].normalize()
	}
	for i := range s.Tenants {
		s.Tenants[i].normalize()
	}
}

func (n *NodeSpec) normalize() {
	if n.Enforce != "on" {
		n.Enforce = "observe"
	}
	orNew(&n.GPUMemoryReserve, DefaultGPUMemoryReserve)
	if n.Queue != nil {
		orNew(&n.Queue.HalfLife, DefaultHalfLife)
		orNew(&n.Queue.Waiting, DefaultQueueWaiting)
	}
	if n.Isolation == nil {
		n.Isolation = &IsolationSpec{}
	}
	orElse(&n.Isolation.Logins, LoginsOpen)
	orElse(&n.Isolation.Migration, MigrationDeny)
	orElse(&n.Isolation.Unattributed, UnattributedReport)
	orElse(&n.Isolation.Unfrozen, UnfrozenReport)
	orElse(&n.Isolation.Attach, AttachMember)
	if n.Isolation.Units == nil {
		n.Isolation.Units = DefaultClosedUnits()
	}
}

func (g *GPUSpec) normalize() {
	g.Select.normalize()
	switch g.Mode {
	case ModeMIG:
		if g.MIG != nil && g.MIG.Dynamic {
			orNew(&g.MIG.Keep, DefaultKeep)
		}
		if g.MPS != nil {
			orElse(&g.MPS.Bypass, BypassReport)
		}
	case ModeMPS:
		if g.MPS == nil {
			g.MPS = &MPSSpec{}
		}
		orElse(&g.MPS.Bypass, BypassReport)
	case ModeTimeslice:
		if g.Timeslice == nil {
			g.Timeslice = &TimesliceSpec{}
		}
		orNew(&g.Timeslice.Round, DefaultRound)
	}
}

func (s *Selector) normalize() {
	for i, p := range s.PCI {
		if canonical, ok := CanonicalPCI(p); ok {
			s.PCI[i] = canonical
		}
	}
	for i, id := range s.PCIID {
		if p, ok := ParsePCIID(id); ok {
			s.PCIID[i] = p.String()
		}
	}
}

func (t *TenantSpec) normalize() {
	orElse(&t.Priority, "normal")
	if t.Overuse == nil {
		t.Overuse = &OveruseSpec{}
	}
	orElse(&t.Overuse.GPUMemory, DefaultOveruse)
	orNew(&t.Overuse.Grace, DefaultOveruseGrace)
	for i := range t.Grants {
		g := &t.Grants[i]
		if k := g.Kind(); k == ModeMIG || k == ModeExclusive {
			orNew(&g.MaxLeases, 1)
		}
		if g.GPUs != nil {
			g.GPUs.normalize()
		}
		if g.Idle != nil {
			orElse(&g.Idle.Do, IdleNotify)
		}
	}
}

// CanonicalPCI gives a PCI address in the kernel's spelling, "0000:07:00.0". It also reads the address without its
// domain ("07:00.0") and with the driver's eight-digit domain ("00000000:07:00.0").
func CanonicalPCI(s string) (string, bool) {
	s = strings.ToLower(s)
	parts := strings.Split(s, ":")
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if len(parts) != 3 || len(parts[0]) < 4 || len(parts[0]) > 8 || len(parts[1]) != 2 {
		return "", false
	}
	device, function, ok := strings.Cut(parts[2], ".")
	if !ok || len(device) != 2 || len(function) != 1 || strings.Trim(parts[0]+parts[1]+device+function, "0123456789abcdef") != "" {
		return "", false
	}
	domain := parts[0]
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return domain + ":" + parts[1] + ":" + parts[2], true
}

func orElse[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

func orNew[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
