package main

import (
	"context"
	"strings"
	"testing"

	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

// The kubelet that watches the health of devices hears of each of them, and soon of a GPU that is lost.
func TestHealthOfDevices(t *testing.T) {
	t.Parallel()
	n := newNode(t, virtual, spec)
	d := newDriver(t, n)
	d.start(t, "")
	k := d.register(t)
	ctx, stop := context.WithCancel(soon(t))
	defer stop()
	stream, err := healthpb.NewDRAResourceHealthClient(k.conn).NodeWatchResources(ctx, &healthpb.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// await reads reports until one of a device is as it should be.
	await := func(what, device string, ok func(h *healthpb.DeviceHealth) bool) {
		t.Helper()
		for {
			r, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, h := range r.Devices {
				if h.Device.PoolName != testNode {
					t.Fatalf("a device is of pool %q", h.Device.PoolName)
				}
				if h.Device.DeviceName == device && ok(h) {
					return
				}
			}
		}
	}
	healthy := func(h *healthpb.DeviceHealth) bool { return h.Health == healthpb.HealthStatus_HEALTHY }
	await("GPU 3 is not healthy", gpu3, healthy)
	await("a part of GPU 1 is not healthy", gpu1+"-serve", healthy)
	if err := n.Ctl(ctx, nil, "xid", "3", "79"); err != nil {
		t.Fatal(err)
	}
	await("GPU 3 is healthy", gpu3, func(h *healthpb.DeviceHealth) bool {
		return h.Health == healthpb.HealthStatus_UNHEALTHY && strings.HasPrefix(h.Message, "GPU 3 is ")
	})
	await("GPU 2 is not healthy", gpu2, healthy)
}
