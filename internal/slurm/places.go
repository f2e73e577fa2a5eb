package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Place is a GPU or an instance that a job has.
type Place struct {
	Slurm    string // as SLURM_JOB_GPUS names it
	GPU      string // its UUID, or that of its GPU
	Index    int    // of the GPU
	Instance string // its MIG UUID; empty: it is no instance
	Shared   bool   // a GPU that leases share
	Leased   bool   // gpushare gives leases there
	Unusable string // why the GPU is unusable; empty: it is not
}

// Device is what CUDA_VISIBLE_DEVICES calls it.
func (p *Place) Device() string { return cmp.Or(p.Instance, p.GPU) }

// Devices are the GPUs and instances of the node in the order in which slurmd counts them in SLURM_JOB_GPUS: the files of each.
func (r *Report) Devices() [][]string {
	var out [][]string
	for i := range r.Known {
		if k := &r.Known[i]; k.Name == "gpu" && len(k.Files) > 0 {
			out = append(out, k.Files)
		}
	}
	return out
}

// Places are what a list such as SLURM_JOB_GPUS names.
func Places(list string, r *Report, s *api.Status) ([]Place, error) {
	devices := r.Devices()
	var out []Place
	for word := range strings.SplitSeq(list, ",") {
		p, err := place(word, devices, s)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(o Place) bool { return o.Device() == p.Device() }) {
			return nil, fmt.Errorf("%q names %s twice", list, p.Device())
		}
		out = append(out, *p)
	}
	return out, nil
}

func place(word string, devices [][]string, s *api.Status) (*Place, error) {
	n, err := strconv.Atoi(word)
	if err != nil || n < 0 || n >= len(devices) {
		return nil, fmt.Errorf("slurmd counts %d GPUs, and the job has the one at %q", len(devices), word)
	}
	files := devices[n]
	for i := range s.GPUs {
		g := &s.GPUs[i]
		p := &Place{Slurm: word, GPU: g.UUID, Index: g.Index, Leased: leased(g), Unusable: Unusable(g)}
		if uuid := instanceOf(g, files); uuid != "" {
			p.Instance = uuid
			return p, nil
		}
		if !slices.Equal(files, []string{g.DeviceNode}) {
			continue
		}
		if g.MIG != nil && g.MIG.Enabled {
			return nil, fmt.Errorf("GPU %d is partitioned, and slurmd gives it whole: 'gpushare slurm check' says more", g.Index)
		}
		p.Shared = g.Mode == api.ModeTimeslice || g.Mode == api.ModeMPS
		return p, nil
	}
	return nil, fmt.Errorf("gpushare has no GPU or instance with the files %s: 'gpushare slurm check' says more", strings.Join(files, ","))
}

// instanceOf is the UUID of the instance of a GPU that has these files; empty: there is none.
func instanceOf(g *api.GPUStatus, files []string) string {
	if g.MIG == nil {
		return ""
	}
	for i := range g.MIG.Instances {
		in := &g.MIG.Instances[i]
		for j := range in.Compute {
			if sameFiles(in.Compute[j].DeviceNodes, files) {
				return in.Compute[j].UUID
			}
		}
		if len(in.Compute) == 0 && len(in.UUIDs) > 0 && len(in.DeviceNodes) > 0 && sameFiles(in.DeviceNodes, files) {
			return in.UUIDs[0]
		}
	}
	return ""
}

// leased reports whether gpushare gives leases on a GPU: it only looks at one of mode external, and at one without an entry.
func leased(g *api.GPUStatus) bool {
	return slices.Contains([]string{api.ModeTimeslice, api.ModeMPS, api.ModeExclusive, api.ModeMIG}, g.Mode)
}

// Unusable is why a GPU is unusable, for Slurm to drain its node; empty: it is not. What an administrator does with a GPU is no reason: a
// cordon, a change, a layout that is held.
func Unusable(g *api.GPUStatus) string {
	if !slices.Contains([]string{"lost", "stuck", "unreadable", "unhealthy"}, g.State) {
		return ""
	}
	return fmt.Sprintf("GPU %d is %s: %s", g.Index, g.State, cmp.Or(g.Reason, "'gpushare gpu show' says more"))
}

// UnusableGPUs is why GPUs that Slurm places on are unusable: those with owner slurm, or all where none has it.
func UnusableGPUs(s *api.Status) []string {
	owned := slices.ContainsFunc(s.GPUs, func(g api.GPUStatus) bool { return g.Owner == api.OwnerSlurm })
	var out []string
	for i := range s.GPUs {
		if why := Unusable(&s.GPUs[i]); why != "" && (!owned || s.GPUs[i].Owner == api.OwnerSlurm) {
			out = append(out, why)
		}
	}
	return out
}
