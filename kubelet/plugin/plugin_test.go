package plugin

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/gpushare/api"
)

// dying is a gpushared with one whole GPU that does not answer from some time on.
type dying struct {
	watched
	dead atomic.Bool
}

func (d *dying) Status(context.Context) (*api.Status, error) {
	if d.dead.Load() {
		return nil, &api.Error{Kind: api.KindUnavailable, Message: "it does not answer"}
	}
	return &api.Status{
		Node:    api.NodeStatus{Enforce: "on", Generation: 1},
		GPUs:    []api.GPUStatus{{UUID: "GPU-1", Mode: api.ModeExclusive, State: "ok"}},
		Tenants: []api.TenantStatus{{Name: "kubernetes", Grants: []api.GrantStatus{{Name: "one", GPUs: []string{"GPU-1"}}}}},
	}, nil
}

func (*dying) Spec(context.Context) (*api.SpecDocument, error) {
	one := api.TenantSpec{Name: "kubernetes", Grants: []api.GrantSpec{{Name: "one", Exclusive: 1}}}
	return &api.SpecDocument{Generation: 1, Spec: &api.Spec{Tenants: []api.TenantSpec{one}}}, nil
}

// A device is healthy in each report while gpushared answers, and in none that is sent later than 30 s after it has ceased to.
func TestHealthIsUnknownWithoutGpushared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dying{watched: watched{event: make(chan struct{})}}
		log := slog.New(slog.DiscardHandler)
		publisher := &Publisher{
			Node: &Node{Daemon: d, Tenant: "kubernetes", Root: t.TempDir()}, Pool: "node1", Log: log,
			Submit: func(context.Context, resourceslice.DriverResources) error { return nil },
		}
		p := &Plugin{Publisher: publisher, Log: log}
		ctx, stop := context.WithCancel(t.Context())
		reports := make(chan kubeletplugin.DeviceHealthReport)
		done := make(chan struct{}, 2)
		go func() { publisher.Run(ctx); done <- struct{}{} }()
		go func() {
			if err := p.WatchHealthStatus(ctx, reports); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}()
		// follow reads what comes within a time.
		follow := func(lasts time.Duration, each func(kubeletplugin.DeviceHealth)) {
			end := time.After(lasts)
			for {
				select {
				case r := <-reports:
					for _, h := range r.Devices {
						each(h)
					}
				case <-end:
					return
				}
			}
		}
		seen := 0
		follow(2*time.Minute, func(h kubeletplugin.DeviceHealth) {
			seen++
			if h.Health != kubeletplugin.HealthStatusHealthy {
				t.Errorf("a device is %v: %s", h.Health, h.Message)
			}
		})
		d.dead.Store(true)
		follow(30*time.Second, func(kubeletplugin.DeviceHealth) {})
		late := 0
		follow(2*time.Minute, func(h kubeletplugin.DeviceHealth) {
			late++
			if h.Health != kubeletplugin.HealthStatusUnknown {
				t.Errorf("without gpushared a device is %v: %s", h.Health, h.Message)
			}
		})
		if seen < 10 || late < 10 {
			t.Errorf("there were %d reports, and %d without gpushared", seen, late)
		}
		stop()
		<-done
		<-done
	})
}
