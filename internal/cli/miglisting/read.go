// Package miglisting reads what nvidia-smi prints about MIG profiles and their placements, and writes it as a board file. It
// queries no GPU.
package miglisting

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/mig"
)

// The lines that are read; all others are passed over. -lgip prints two lines for each profile:
//
//	|   0  MIG 1g.10gb        19     7/7        9.75       No     16     1     0   |
//	|                                                             1     1     0   |
//
// and -lgipp one, with "Placement :" where there is one only.
//
// They are compiled when they are first used: the command line imports this package in every command.
var (
	profileLine   = compiled(`^\|\s+(\d+)\s+MIG\s+(\S+)\s+(\d+)\s+\d+/(\d+)\s+(\d+(?:\.\d+)?)\s+\S+\s+(\d+)\s+(\d+)\s+\d+\s*\|$`)
	enginesLine   = compiled(`^\|\s+(\d+)\s+(\d+)\s+(\d+)\s*\|$`)
	placementLine = compiled(`^GPU\s+(\d+)\s+Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,\s]+)\}\s*:\s*(\d+)`)
	nameLine      = compiled(`^GPU\s+(\d+):\s+(.+?)\s+\(UUID:`)
	pciLine       = compiled(`\[10de:([0-9a-f]{4})\]`)
)

func compiled(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// Most memory slices of a board that is believed, and most profiles: far above those of today.
const (
	mostWidth    = 64
	mostProfiles = 100
	maxShown     = 80
)

// Read reads the output of 'nvidia-smi mig -lgip' and 'nvidia-smi mig -lgipp' together, and of 'nvidia-smi -L' and
// 'lspci -nn' where they are there too. Without a GPU it reads the only one, or the first if all have the same profiles.
func Read(raw string, gpu *int) (*board.Board, error) {
	all, err := scan(raw)
	if err != nil {
		return nil, err
	}
	b := all.first(gpu)
	if b == nil && gpu != nil {
		return nil, fmt.Errorf("it has no profiles of GPU %d", *gpu)
	}
	if b == nil {
		return nil, fmt.Errorf("it has no profiles: it needs the output of 'nvidia-smi mig -lgip'")
	}
	if gpu == nil {
		for _, n := range all.order {
			if other := all.gpus[n]; !same(b, other) {
				return nil, fmt.Errorf("GPU %d has other profiles than GPU %d: choose one with --gpu", n, all.order[0])
			}
		}
	}
	return b.board(all.id)
}

// listing has the profiles of the GPUs that it names.
type listing struct {
	gpus  map[int]*device
	order []int
	id    uint32 // of the first board that lspci names
}

type device struct {
	name       string
	profiles   []board.Profile
	placements map[uint32]placement // by the id of the profile
}

type placement struct {
	starts []uint32
	size   uint32
}

func (l *listing) device(number string) *device {
	n, _ := strconv.Atoi(number) // Digits; one that is too long is no GPU's and gets 0 or the largest.
	if l.gpus[n] == nil {
		l.gpus[n] = &device{placements: map[uint32]placement{}}
		l.order = append(l.order, n)
	}
	return l.gpus[n]
}

// first returns a GPU, or the first that has profiles.
func (l *listing) first(gpu *int) *device {
	l.order = slices.DeleteFunc(l.order, func(n int) bool { return len(l.gpus[n].profiles) == 0 })
	switch {
	case gpu != nil && slices.Contains(l.order, *gpu):
		return l.gpus[*gpu]
	case gpu != nil || len(l.order) == 0:
		return nil
	}
	slices.Sort(l.order)
	return l.gpus[l.order[0]]
}

func scan(raw string) (*listing, error) {
	l := &listing{gpus: map[int]*device{}}
	var engines *board.Profile // of which the second line is next
	for i, line := range strings.Split(raw, "\n") {
		line = strings.TrimSpace(line)
		fail := func(format string, args ...any) error {
			return fmt.Errorf("line %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		if m := profileLine().FindStringSubmatch(line); m != nil {
			d := l.device(m[1])
			p, err := profile(m)
			if err != nil {
				return nil, fail("%v", err)
			}
			if len(d.profiles) == mostProfiles ||
				slices.ContainsFunc(d.profiles, func(q board.Profile) bool { return q.ID == p.ID || q.Name == p.Name }) {
				return nil, fail("GPU %s has %s or its id %d twice", m[1], p.Name, p.ID)
			}
			d.profiles = append(d.profiles, p)
			engines = &d.profiles[len(d.profiles)-1]
			continue
		}
		if m := enginesLine().FindStringSubmatch(line); m != nil && engines != nil {
			engines.Copy, engines.JPEG, engines.OFA = number(m[1]), number(m[2]), number(m[3])
		} else if m := placementLine().FindStringSubmatch(line); m != nil {
			d, id := l.device(m[1]), number(m[2])
			at, err := places(m[3], m[4])
			if err != nil {
				return nil, fail("%v", err)
			}
			if _, twice := d.placements[id]; twice {
				return nil, fail("the placements of profile %d of GPU %s are there twice", id, m[1])
			}
			d.placements[id] = at
		} else if m := nameLine().FindStringSubmatch(line); m != nil {
			l.device(m[1]).name = m[2]
		} else if m := pciLine().FindStringSubmatch(line); m != nil && l.id == 0 {
			id, _ := strconv.ParseUint(m[1], 16, 16)
			l.id = uint32(id)<<16 | 0x10de
		}
		engines = nil
	}
	return l, nil
}

// number reads digits; a number that is too large becomes the largest, which no check passes.
func number(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 1<<32 - 1
	}
	return uint32(n)
}

func profile(m []string) (board.Profile, error) {
	name, err := mig.ParseProfile(m[2])
	if err != nil {
		return board.Profile{}, err
	}
	gib, err := strconv.ParseFloat(m[5], 64)
	if err != nil || gib <= 0 || gib > 1<<20 {
		return board.Profile{}, fmt.Errorf("%s has %s GiB", name, text.Short(m[5], maxShown))
	}
	p := board.Profile{
		ID: number(m[3]), Name: name.String(), Slices: name.Slices, Max: number(m[4]), SMs: number(m[6]), Decoders: number(m[7]),
		// Listings print GiB with two decimals; the driver's sizes are multiples of 64 MiB.
		MemoryMiB: uint64(gib*1024/64+0.5) * 64, Attributes: name.Attributes,
	}
	if name.Compute != 0 || p.Slices > mostWidth || p.Max == 0 || p.Max > mostWidth || p.MemoryMiB == 0 {
		return board.Profile{}, fmt.Errorf("%s is no profile of a GPU instance, or has no instance", text.Short(m[2], maxShown))
	}
	return p, nil
}

func places(starts, size string) (placement, error) {
	p := placement{size: number(size)}
	for _, s := range strings.Split(starts, ",") {
		start := number(strings.TrimSpace(s))
		if p.size == 0 || p.size > mostWidth || start > mostWidth-p.size || slices.Contains(p.starts, start) {
			return placement{}, fmt.Errorf("cannot read the placements {%s}:%s", text.Short(starts, maxShown), text.Short(size, maxShown))
		}
		p.starts = append(p.starts, start)
	}
	return p, nil
}

func same(a, b *device) bool {
	return slices.EqualFunc(a.profiles, b.profiles, func(p, q board.Profile) bool {
		return p.ID == q.ID && p.Name == q.Name && p.Max == q.Max && p.MemoryMiB == q.MemoryMiB
	})
}

// board puts profiles and placements together.
func (d *device) board(id uint32) (*board.Board, error) {
	b := &board.Board{Name: d.name, PCIDevice: id}
	for _, p := range d.profiles {
		at, ok := d.placements[p.ID]
		if !ok {
			return nil, fmt.Errorf("it has no placements of %s (id %d): it needs the output of 'nvidia-smi mig -lgipp' too", p.Name, p.ID)
		}
		p.Starts, p.Size = slices.Sorted(slices.Values(at.starts)), at.size
		if int(p.Max) > len(p.Starts) {
			return nil, fmt.Errorf("%s may exist %d times and has %d placements", p.Name, p.Max, len(p.Starts))
		}
		b.Grid = max(b.Grid, p.Starts[len(p.Starts)-1]+p.Size)
		b.SMs = max(b.SMs, p.SMs)
		b.Memory.Total = max(b.Memory.Total, p.MemoryMiB)
		b.Profiles = append(b.Profiles, p)
	}
	slices.SortStableFunc(b.Profiles, func(p, q board.Profile) int {
		return cmp.Or(cmp.Compare(p.Slices, q.Slices), cmp.Compare(p.Size, q.Size))
	})
	number := enums()
	for i := range b.Profiles {
		b.Profiles[i].Enum = number(&b.Profiles[i])
	}
	b.Unverified = []string{
		"the total memory, which a listing of profiles does not have",
		"the order in which the driver prefers placements",
	}
	return b, nil
}
