package gpusim

import (
	"fmt"
	"sort"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// MiB is the driver's unit of memory.
const MiB = 1 << 20

// The architectures, in the order of the driver's architecture numbers.
const (
	Ampere    = "ampere"
	Hopper    = "hopper"
	Blackwell = "blackwell"
)

// Model is the data of a board.
type Model struct {
	Name         string // "NVIDIA A100-SXM4-40GB"
	Architecture string
	PCIDevice    uint32 // device id in the upper, vendor id in the lower half: 0x20B010DE
	PCISubsystem uint32 // in the same form
	TotalMiB     uint64 // as in version 2 of the driver's memory call, reserved included
	ReservedMiB  uint64
	SMs          uint32
	NVLinks      int // number of links of the board
	// Resetless: a change of MIG mode needs no GPU reset.
	Resetless bool
	// ModeSurvivesBoot: the board keeps its MIG mode over reboot and driver load.
	ModeSurvivesBoot bool
	Sensors          BoardSensors
	// Grid is the number of memory slices; 0 for a board without MIG.
	Grid     uint32
	Profiles []Profile
}

// Profile is one GPU-instance profile of a board.
type Profile struct {
	Enum   uint32 // the profile number of the query calls
	ID     uint32 // the profile id in all other calls
	Name   string // without the driver's prefix "MIG "
	Slices uint32 // compute slices
	Size   uint32 // memory slices
	Starts []uint32
	// Prefer is the order in which the driver tries starts when none is given; if empty, Starts from the highest.
	Prefer    []uint32
	Max       uint32
	MemoryMiB uint64
	SMs       uint32
	Copy      uint32
	Decoders  uint32
	JPEG      uint32
	OFA       uint32
	// Attributes may contain "me", "me.all", "-me" and "gfx".
	Attributes []string
}

// Placements returns every legal placement, sorted.
func (p *Profile) Placements() []gpu.Placement {
	out := make([]gpu.Placement, 0, len(p.Starts))
	for _, s := range p.Starts {
		out = append(out, gpu.Placement{Start: s, Size: p.Size})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Start < out[j].Start })
	return out
}

// preferred returns the starts in the order in which the driver tries them.
func (p *Profile) preferred() []uint32 {
	if len(p.Prefer) > 0 {
		return p.Prefer
	}
	out := append([]uint32(nil), p.Starts...)
	sort.Slice(out, func(i, j int) bool { return out[i] > out[j] })
	return out
}

func (p *Profile) has(attribute string) bool {
	for _, a := range p.Attributes {
		if a == attribute {
			return true
		}
	}
	return false
}

// byID finds a profile by id.
func (m *Model) byID(id uint32) *Profile {
	for i := range m.Profiles {
		if m.Profiles[i].ID == id {
			return &m.Profiles[i]
		}
	}
	return nil
}

// byEnum finds a profile by the profile number of the query calls.
func (m *Model) byEnum(enum uint32) *Profile {
	for i := range m.Profiles {
		if m.Profiles[i].Enum == enum {
			return &m.Profiles[i]
		}
	}
	return nil
}

// Validate checks a model.
func (m *Model) Validate() error {
	switch {
	case m.Name == "":
		return fmt.Errorf("cannot use model: it has no name")
	case m.ReservedMiB >= m.TotalMiB:
		return fmt.Errorf("cannot use model %s: reserved memory is not below total memory", m.Name)
	case m.Grid == 0 && len(m.Profiles) > 0:
		return fmt.Errorf("cannot use model %s: profiles without a grid", m.Name)
	}
	ids, enums := map[uint32]bool{}, map[uint32]bool{}
	for _, p := range m.Profiles {
		if ids[p.ID] || enums[p.Enum] {
			return fmt.Errorf("cannot use model %s: profile %s repeats an id or enum", m.Name, p.Name)
		}
		ids[p.ID], enums[p.Enum] = true, true
		if p.Slices == 0 || p.Size == 0 || p.Max == 0 || p.MemoryMiB == 0 || len(p.Starts) == 0 || uint32(len(p.Starts)) < p.Max {
			return fmt.Errorf("cannot use model %s: profile %s lacks slices, size, starts, max or memory", m.Name, p.Name)
		}
		for _, s := range p.Starts {
			if s+p.Size > m.Grid {
				return fmt.Errorf("cannot use model %s: profile %s at %d leaves the grid of %d", m.Name, p.Name, s, m.Grid)
			}
		}
		for _, a := range p.Attributes {
			if !strings.Contains(" me me.all -me gfx ", " "+a+" ") {
				return fmt.Errorf("cannot use model %s: profile %s has unknown attribute %q", m.Name, p.Name, a)
			}
		}
	}
	return nil
}

// computeProfile is one compute-instance profile inside a GPU instance.
type computeProfile struct {
	enum, slices uint32
}

// The compute-instance profiles by enum, which is their id too. Enums 5 to 8 (8 and 6 slices, the first revision of
// 1 slice, and 7 slices for NVLink) are on no board that is modelled.
var computeProfiles = [...]computeProfile{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 7}}

// computeEnums is one more than the largest compute-instance profile enum.
const computeEnums = 9

// computeFits reports whether a GPU instance of g slices offers compute instances of c slices: all of it, or at most half
// of it, rounded up. This gives the published lists of 3g, 4g and 7g.
func computeFits(g, c uint32) bool { return c == g || 2*c <= g+1 && c < g }

// computeStarts returns the legal starts of a compute instance of c slices in a GPU instance of g slices: see
// gpu.ComputeAlign.
func computeStarts(g, c uint32) []uint32 {
	var out []uint32
	for s := uint32(0); s+c <= g; s += gpu.ComputeAlign(c) {
		out = append(out, s)
	}
	return out
}
