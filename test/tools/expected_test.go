//go:build tools

package tools

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/internal/board"
)

const mib = 1 << 20

// expected are the expected readings of a node of one board. They are computed from the state of the node and from the
// board's file, without the library.
type expected struct {
	board  *board.Board
	driver string // the library's variant
	busy   int    // pid of the process that keeps the second GPU busy
}

// enums is the number of profile numbers of the variant; the clients query 32.
func (w expected) enums() int {
	if w.driver == "535" {
		return 0xa
	}
	return 0x12
}

func (w expected) node(s server.Status) nodeReading {
	cuda := map[string]int{"535": 12020, "580": 13000}[w.driver]
	out := nodeReading{
		Driver: s.DriverVersion, Library: fmt.Sprintf("%d.%s", cuda/1000, s.DriverVersion), CUDA: cuda, Lacking: []string{},
		Refused: map[string]string{
			"the GPU behind the last": "InvalidArgument", "a GPU that is not there": "NotFound",
			"a MIG device that is not there": "NotFound", "memory in a version that is none": "ArgumentVersionMismatch",
		},
	}
	for _, g := range s.GPUs {
		out.GPUs = append(out.GPUs, w.gpu(g.Snapshot))
	}
	return out
}

func (w expected) gpu(g gpu.Snapshot) gpuReading {
	id := g.Identity
	out := gpuReading{
		Index:       id.Index,
		ByUUID:      id.Index,
		ByPCI:       id.Index,
		UUID:        id.UUID,
		Name:        w.board.Name,
		Minor:       id.Minor,
		PCI:         w.pci(id.PCI),
		Memory:      memory(g.Memory),
		ComputeMode: map[gpu.ComputeMode]int{gpu.ComputeDefault: 0, gpu.ComputeExclusiveProcess: 3, gpu.ComputeProhibited: 2}[g.ComputeMode],
		MIG:         modeReading{one(g.MIG.Current), one(g.MIG.Pending)},
		Resetless:   resetlessReading{0, uint64(one(w.board.Resetless))},
		Profiles:    w.profiles(g),
		Instances:   []instanceReading{},
		Processes:   w.processes(g, nil),
		Links:       w.links(id.Index),
		// The same on every virtual board.
		Temperature: answer[int]{Value: 34},
		Power:       answer[int]{Error: "NotSupported"},
		PowerLimit:  answer[int]{Error: "NotSupported"},
		Clock:       answer[int]{Value: 1410},
		Fan:         answer[int]{Error: "NotSupported"},
		Energy:      answer[uint64]{Error: "NotSupported"},
	}
	if p := w.board.Sensors.Power; p != nil {
		out.Power, out.PowerLimit = answer[int]{Value: 62_000}, answer[int]{Value: int(p.Default) * 1000}
	}
	switch {
	case g.MIG.Current:
		out.Utilization.Error, out.ProcessUtilization.Error = "NotSupported", "NotSupported"
		out.UtilizationSeries.Error = "NotSupported"
	case g.Utilization != nil && *g.Utilization > 0:
		out.Utilization.Value = *g.Utilization
		out.ProcessUtilization.Value = []utilizationReading{{w.busy, 100}}
		out.UtilizationSeries.Value = seriesReading{Type: 1, Percent: []int{100}} // unsigned int
	default:
		out.ProcessUtilization.Error, out.UtilizationSeries.Error = "NotFound", "NotFound"
	}
	if w.board.Architecture == "blackwell" { // the clients use the older call
		out.ProcessUtilization = answer[[]utilizationReading]{Error: "NotSupported"}
	}
	for _, gi := range g.Instances {
		in := instanceReading{ID: gi.ID, ProfileID: gi.ProfileID, Placement: gi.Placement}
		for _, ci := range gi.Compute {
			in.Compute = append(in.Compute, computeReading{
				ID: ci.ID, ProfileID: ci.ProfileID, Placement: ci.Placement, UUID: ci.UUID,
				Profile: "MIG " + w.deviceName(gi, ci), SMs: w.sms(gi, ci),
			})
		}
		out.Instances = append(out.Instances, in)
	}
	out.MIGDevices = w.devices(g)
	return out
}

// pci converts an address of the kernel to the library's: with a domain of eight digits, and of four for older clients.
func (w expected) pci(address string) pciReading {
	out := pciReading{Legacy: strings.ToUpper(address), Board: w.board.PCIDevice, Subsystem: w.board.PCISubsystem}
	out.ID = "0000" + out.Legacy
	var function uint32
	_, _ = fmt.Sscanf(address, "%x:%x:%x.%x", &out.Domain, &out.Bus, &out.Device, &function)
	return out
}

// links are those of the node file: a bridge connects two GPUs, and two switches connect all others.
func (w expected) links(index int) linksReading {
	out := linksReading{To: map[string]int{}, Refused: map[string]int{"InvalidArgument": 2}}
	if n := 18 - w.board.NVLinks; n > 0 {
		out.Refused["NotSupported"] = n
	}
	switch {
	case w.board.NVLinks == 0:
	case index == whole:
		out.To["00000001:02:03.0 02 0"] = w.board.NVLinks
	case index == changing:
		out.To["00000000:C1:00.0 c1 0"] = w.board.NVLinks
	default:
		out.To["00000000:C4:00.0 c4 2"] = w.board.NVLinks / 2
		out.To["00000000:C5:00.0 c5 2"] = w.board.NVLinks / 2
	}
	return out
}

func memory(m gpu.Memory) memoryReading {
	return memoryReading{First: gpu.Memory{Total: m.Total, Used: m.Used + m.Reserved, Free: m.Free}, Second: m}
}

func (w expected) profile(id uint32) board.Profile {
	return w.board.Profiles[slices.IndexFunc(w.board.Profiles, func(p board.Profile) bool { return p.ID == id })]
}

// deviceName returns the profile name of a compute instance: "1c.3g.20gb" if it uses a part of its GPU instance.
func (w expected) deviceName(gi gpu.Instance, ci gpu.ComputeInstance) string {
	p := w.profile(gi.ProfileID)
	if ci.Placement.Size == p.Slices {
		return p.Name
	}
	return fmt.Sprintf("%dc.%s", ci.Placement.Size, p.Name)
}

func (w expected) sms(gi gpu.Instance, ci gpu.ComputeInstance) uint32 {
	p := w.profile(gi.ProfileID)
	return p.SMs * ci.Placement.Size / p.Slices
}

func (w expected) profiles(g gpu.Snapshot) profilesReading {
	out := profilesReading{Found: map[uint32]profileReading{}, Refused: map[string]int{"InvalidArgument": 32 - w.enums()}}
	if w.driver == "535" && !g.MIG.Current {
		out.Refused = map[string]int{"NotSupported": 32}
		return out
	}
	for _, p := range w.board.Profiles {
		if int(p.Enum) >= w.enums() {
			continue
		}
		r := profileReading{
			ID: p.ID, Name: "MIG " + p.Name, Slices: p.Slices, Max: p.Max, SMs: p.SMs, Copy: p.Copy, Decoders: p.Decoders,
			JPEG: p.JPEG, OFA: p.OFA, MemoryMiB: p.MemoryMiB, FirstVersion: true, Capacity: answer[uint32]{Error: "NotSupported"},
		}
		for _, s := range p.Starts {
			r.Placements = append(r.Placements, gpu.Placement{Start: s, Size: p.Size})
		}
		slices.SortFunc(r.Placements, func(a, b gpu.Placement) int { return int(a.Start) - int(b.Start) })
		if g.MIG.Current {
			r.Capacity = answer[uint32]{Value: w.capacity(p, g.Instances)}
		}
		out.Found[p.Enum] = r
	}
	out.Refused["NotSupported"] = w.enums() - len(out.Found)
	return out
}

// capacity returns how many more instances of a profile fit, by trying all placements.
func (w expected) capacity(p board.Profile, there []gpu.Instance) uint32 {
	taken := make([]bool, w.board.Grid)
	have := uint32(0)
	for _, gi := range there {
		q := w.profile(gi.ProfileID)
		if q.ID == p.ID {
			have++
		}
		for _, pair := range [][2]board.Profile{{p, q}, {q, p}} {
			media := pair[0].Attributes
			if slices.Contains(media, "me") && slices.Contains(pair[1].Attributes, "me") && p.ID != q.ID {
				return 0
			}
			if slices.Contains(media, "me.all") && !slices.Contains(pair[1].Attributes, "-me") {
				return 0
			}
		}
		for i := range gi.Placement.Size {
			taken[gi.Placement.Start+i] = true
		}
	}
	var most func(from int) uint32
	most = func(from int) uint32 {
		if from == len(p.Starts) {
			return 0
		}
		without := most(from + 1)
		run := taken[p.Starts[from] : p.Starts[from]+p.Size]
		if slices.Contains(run, true) {
			return without
		}
		for i := range run {
			run[i] = true
		}
		with := 1 + most(from+1)
		for i := range run {
			run[i] = false
		}
		return max(without, with)
	}
	return min(most(0), p.Max-have)
}

func (w expected) devices(g gpu.Snapshot) devicesReading {
	out := devicesReading{Devices: []deviceReading{}, Refused: []string{}}
	if g.MIG.Current {
		for _, p := range w.board.Profiles {
			out.Capacity = max(out.Capacity, p.Max)
		}
	}
	for _, gi := range g.Instances {
		for _, ci := range gi.Compute {
			p := w.profile(gi.ProfileID)
			out.Devices = append(out.Devices, deviceReading{
				UUID: ci.UUID, Name: w.board.Name + " MIG " + w.deviceName(gi, ci), IsMIG: true, GI: gi.ID, CI: ci.ID,
				Parent: g.Identity.UUID, Memory: memory(gi.Memory), Utilization: answer[int]{Error: "NotSupported"},
				ProcessUtilization: "NotSupported",
				Attributes: attributesReading{
					SMs: w.sms(gi, ci), Copy: p.Copy, Decoders: p.Decoders, JPEG: p.JPEG, OFA: p.OFA,
					GISlices: p.Slices, CISlices: ci.Placement.Size, MemoryMiB: p.MemoryMiB,
				},
				Processes: w.processes(g, func(p gpu.Process) bool { return p.GI != nil && *p.GI == gi.ID && *p.CI == ci.ID }),
			})
		}
	}
	if int(out.Capacity) > len(out.Devices) {
		out.Refused = []string{"NotFound"}
	}
	// The library orders them by the ids of their instances.
	slices.SortFunc(out.Devices, func(a, b deviceReading) int { return int(a.GI<<8+a.CI) - int(b.GI<<8+b.CI) })
	return out
}

// processes returns the processes of a GPU for which which is true; all with nil.
func (w expected) processes(g gpu.Snapshot, which func(gpu.Process) bool) processesReading {
	out := processesReading{Compute: []processReading{}, Graphics: []processReading{}, MPS: []processReading{}}
	for _, p := range g.Processes {
		if which != nil && !which(p) {
			continue
		}
		list := &out.Compute
		if p.Kind == gpu.MPSProcess {
			list = &out.MPS
		}
		*list = append(*list, processReading{PID: p.PID, Memory: p.Memory, GI: p.GI, CI: p.CI, Name: program(p.PID)})
	}
	return out
}

// program returns the program of a process from its command line.
func program(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err.Error()
	}
	name, _, _ := strings.Cut(string(b), "\x00")
	return name
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
