package top

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/api"
	amounts "github.com/gpushare/gpushare/internal/text"
)

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// index is a GPU in a column; one that is lost has no index.
func index(n int) string {
	if n < 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func gpuName(g *api.GPUStatus) string {
	if g.Index < 0 {
		return g.UUID
	}
	return "GPU " + strconv.Itoa(g.Index)
}

// gib is an amount of memory in three digits: 1.5G, 30G, 512M.
func gib(n uint64) string {
	const mib, gib = 1 << 20, 1 << 30
	switch f := float64(n) / gib; {
	case n == 0:
		return "0"
	case n < gib:
		return fmt.Sprintf("%.0fM", math.Ceil(float64(n)/mib))
	case f < 10 && f != math.Trunc(f):
		return fmt.Sprintf("%.1fG", f)
	default:
		return fmt.Sprintf("%.0fG", f)
	}
}

func duration(d time.Duration) string { return amounts.Age(d) }

func seconds(f float64) time.Duration {
	return time.Duration(min(f, math.MaxInt64/float64(time.Second)/2) * float64(time.Second))
}

// uses reports whether a lease has a part of a GPU.
func uses(g *api.GPUStatus, l *api.Lease) bool {
	if slices.Contains(l.GPUs, g.UUID) || slices.Contains(l.Devices, g.UUID) {
		return true
	}
	return instanceOf(g, l) != nil
}

// instanceOf is the instance of a lease on a GPU; nil if it has none.
func instanceOf(g *api.GPUStatus, l *api.Lease) *api.InstanceStatus {
	if g.MIG == nil {
		return nil
	}
	for i := range g.MIG.Instances {
		if in := &g.MIG.Instances[i]; in.Lease == l.ID || slices.Contains(in.Leases, l.ID) {
			return in
		}
	}
	return nil
}

// leasesOn are the leases that run on a GPU.
func leasesOn(s *api.Status, g *api.GPUStatus) (out []*api.Lease) {
	for i := range s.Leases {
		if l := &s.Leases[i]; l.State != api.LeaseQueued && uses(g, l) {
			out = append(out, l)
		}
	}
	return out
}

// place is where a lease is: GPUs by their index, and its MIG instance.
func place(s *api.Status, l *api.Lease) (out string) {
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if !uses(g, l) {
			continue
		}
		if out != "" {
			out += ","
		}
		out += index(g.Index)
		if in := instanceOf(g, l); in != nil {
			out += fmt.Sprintf(" %s@%d", in.Profile, in.Placement.Start)
		}
	}
	return out
}
