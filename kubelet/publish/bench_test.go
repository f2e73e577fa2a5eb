package publish_test

import (
	"fmt"
	"testing"

	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// BenchmarkResources is what each reading of a node costs: eight GPUs with instances on demand of each profile.
func BenchmarkResources(b *testing.B) {
	h100, err := board.Find("h100-80")
	if err != nil {
		b.Fatal(err)
	}
	n := newWorld(b, h100, 2).node()
	one, device := n.Status.GPUs[0], n.MIG.GPUs[0]
	n.Status.GPUs, n.MIG.GPUs = nil, nil
	for i := range 8 {
		one.Index, one.UUID = i, fmt.Sprint("GPU-", i)
		device.UUID = one.UUID
		n.Status.GPUs, n.MIG.GPUs = append(n.Status.GPUs, one), append(n.MIG.GPUs, device)
		for j := range n.Status.Tenants[0].Grants {
			if g := &n.Status.Tenants[0].Grants[j]; g.Kind == "mig" {
				g.GPUs = append(g.GPUs, one.UUID)
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		publish.Resources(n, pool)
	}
	b.ReportMetric(float64(len(devicesOf(n))), "devices")
}
