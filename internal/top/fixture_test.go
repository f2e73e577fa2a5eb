package top

import (
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
)

var noon = time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)

const gib1 = uint64(1) << 30

// lab is a node with a GPU of each mode: instances, MPS, time slices, an exclusive one that is hot, and one that is lost.
func lab() Reading {
	gpu := func(i int, mode string, busy *int, used uint64) api.GPUStatus {
		return api.GPUStatus{
			Index:       i,
			UUID:        fmt.Sprintf("GPU-%d", i),
			Model:       "NVIDIA A100-SXM4-40GB",
			Mode:        mode,
			State:       "ok",
			ReadAt:      &noon,
			Utilization: busy,
			Memory:      api.GPUMemory{Total: 40 * gib1, Used: used, Free: 40*gib1 - used},
			Sensors: &api.Sensors{
				ReadAt: noon, Temperature: new(54 + 5*i), PowerWatts: new(180.4 + 20*float64(i)), PowerLimitWatts: new(400.0),
				Clocks: &api.Clocks{SM: 1410, MaxSM: 1410, Memory: 1593}, Throttle: []string{},
			},
			Health: &api.GPUHealth{State: api.HealthOK, Readings: &api.HealthReadings{ReadAt: noon, SlowdownTemperature: new(89)}},
		}
	}
	s := &api.Status{
		At: noon, Node: api.NodeStatus{Host: "lab1", Generation: 7, Enforce: "on", Driver: "580.95.05", Adapter: "systemd"},
		GPUs: []api.GPUStatus{
			gpu(
				0,
				"mig",
				nil,
				22*gib1,
			),
			gpu(1, "mps", new(84), 12*gib1),
			gpu(2, "timeslice", new(100), 31*gib1),
			gpu(3, "exclusive", new(99), 38*gib1+gib1/2),
			gpu(4, "unmanaged", new(0), 0),
		},
	}
	s.GPUs[0].MIG = &api.MIGStatus{Enabled: true, Pending: true, Instances: []api.InstanceStatus{
		{
			ID:        1,
			Use:       &api.InstanceUse{Busy: new(63.0), IntervalSeconds: 10, ReadAt: noon},
			Profile:   "3g.20gb",
			Placement: api.MIGPlacement{Start: 0, Size: 4},
			UUIDs:     []string{"MIG-1"},
			Lease:     "vision-train-x7k2",
			Memory:    api.GPUMemory{Total: 20 * gib1, Used: 18 * gib1},
		},
		{
			ID:        2,
			Profile:   "1g.5gb",
			Placement: api.MIGPlacement{Start: 4, Size: 1},
			UUIDs:     []string{"MIG-2"},
			Memory:    api.GPUMemory{Total: 5 * gib1},
		},
	}}
	s.GPUs[1].Sensors.Throttle = nil // of a library that does not report them
	hot := s.GPUs[3].Sensors
	hot.Temperature, hot.PowerWatts, hot.PowerLimitWatts = new(91), new(299.0), new(300.0)
	hot.Throttle, hot.Clocks.SM, hot.FanPercent = []string{"power-cap", "thermal"}, 1155, new(88)
	lost := &s.GPUs[4]
	lost.State, lost.Reason, lost.Utilization = "lost", "the GPU is lost", nil
	minutes := func(n int) *time.Time { return new(noon.Add(time.Duration(n) * time.Minute)) }
	run := func(id, tenant, user, mode string, on int, started int, command ...string) api.Lease {
		return api.Lease{
			ID:        id,
			Tenant:    tenant,
			User:      user,
			Kind:      mode,
			State:     api.LeaseRunning,
			GPUs:      []string{fmt.Sprintf("GPU-%d", on)},
			Started:   minutes(-started),
			Processes: 1,
			Command:   command,
			Created:   noon,
		}
	}
	s.Leases = []api.Lease{
		run("vision-train-x7k2", "vision", "alice", "mig", 0, 190, "python", "train.py", "--epochs", "90"),
		run("speech-serve-3kq6", "speech", "bob", "mps", 1, 3000, "/opt/serve/bin/serve", "--port", "8080"),
		run("vision-dev-p2w9", "vision", "carol", "timeslice", 2, 12, "jupyter-lab"),
		run("geology-dev-a1b2", "geology", "dänu-müller", "timeslice", 2, 75, "python", "逆問題.py"),
		run("geology-big-m4n5", "geology", "erin", "exclusive", 3, 611, "./simulate", "\x1b[2Jevil"),
	}
	s.Leases[0].Devices, s.Leases[0].GPUMemory = []string{
		"MIG-1",
	}, &api.LeaseMemory{
		Used:    18 * gib1,
		Limit:   20 * gib1,
		Backend: "mig",
		Hard:    true,
	}
	s.Leases[0].Use = s.GPUs[0].MIG.Instances[0].Use
	s.Leases[3].XIDs = []api.LeaseXID{
		{XID: 43, GPU: "GPU-2", Relation: api.XIDPossible, Count: 1, Last: noon},
		{XID: 31, GPU: "GPU-2", Relation: api.XIDCaused, Count: 3, Last: noon},
	}
	s.Leases[1].Share = &api.LeaseShare{Entitled: 30}
	s.Leases[1].GPUMemory = &api.LeaseMemory{Limit: 16 * gib1, Unknown: true, Backend: "mps"}
	s.Leases[2].Share = &api.LeaseShare{Entitled: 40, Due: new(0.0), Busy: new(0.0)}
	s.Leases[2].GPUMemory = &api.LeaseMemory{Used: 21 * gib1, Limit: 20 * gib1, Stage: "over", Backend: "reactive"}
	s.Leases[3].Share = &api.LeaseShare{Entitled: 40, Due: new(100.0), Busy: new(97.4)}
	s.Leases[3].GPUMemory = &api.LeaseMemory{Used: 10 * gib1, Limit: 12 * gib1, Backend: "reactive"}
	s.Leases[4].GPUMemory, s.Leases[4].Expires, s.Leases[4].Processes = &api.LeaseMemory{Used: 38 * gib1, Backend: "none"}, minutes(829), 4
	s.Leases = append(s.Leases, api.Lease{
		ID: "vision-train-q8r3", Tenant: "vision", User: "frank", Kind: "mig", State: api.LeaseQueued, Position: 1, Created: noon,
		Waiting: "its one lease is in use by alice; it ends at 18:00 at the latest", Command: []string{"python"},
	})
	for _, t := range []string{"vision", "speech", "geology"} {
		s.Tenants = append(s.Tenants, api.TenantStatus{Name: t, Priority: "normal"})
	}
	s.Tenants[1].Priority, s.Tenants[2].Frozen = "high", &api.TenantFreeze{By: "root", Since: noon}
	s.GPUs[1].Processes = []api.ProcessStatus{
		{
			PID:     4100,
			Kind:    "mps-server",
			Command: "nvidia-cuda-mps",
		},
		{PID: 4711, Kind: "mps", Command: "serve", Lease: "speech-serve-3kq6", Tenant: "speech"},
	}
	s.GPUs[2].Processes = []api.ProcessStatus{
		{PID: 5001, Kind: "compute", Command: "python", Lease: "geology-dev-a1b2", Tenant: "geology", Memory: new(10 * gib1)},
		{PID: 5002, Kind: "compute", Command: "miner", Memory: new(gib1 / 2)},
	}
	s.Node.Conditions = []api.Condition{
		{ID: "a", Kind: "gpu", GPU: "GPU-4", Message: "GPU 4 does not answer: it is lost", Since: noon},
		{ID: "b", Kind: "health", GPU: "GPU-3", Message: "it is at 91 °C, and its clocks are lowered from 89 °C", Since: noon},
		{ID: "c", Kind: "drift", Message: "known", Since: noon, Acknowledged: &api.Acknowledgement{By: "root", At: noon}},
	}
	return Reading{Status: s, Idle: &api.Idle{At: noon, Uses: []api.IdleUse{
		{
			GPU:         "GPU-2",
			Index:       2,
			Lease:       "vision-dev-p2w9",
			User:        "carol",
			Held:        20 * gib1,
			Used:        new(21 * gib1),
			State:       api.UseIdle,
			IdleSeconds: new(720.0),
		},
		{
			GPU:         "GPU-2",
			Index:       2,
			Lease:       "geology-dev-a1b2",
			User:        "dänu-müller",
			Held:        12 * gib1,
			Used:        new(10 * gib1),
			State:       api.UseBusy,
			IdleSeconds: new(0.0),
		},
		{GPU: "GPU-0", Index: 0, Lease: "vision-train-x7k2", User: "alice", Held: 20 * gib1, State: api.UseUnknown, Reason: "MIG"},
		{GPU: "GPU-2", Index: 2, User: "mallory", PIDs: []int{5002}, Held: gib1 / 2, Used: new(gib1 / 2), State: api.UseBusy},
	}}}
}

// labModel has some history.
func labModel() *Model {
	m := &Model{}
	for i := range 80 {
		r := lab()
		for j := range r.Status.GPUs {
			if g := &r.Status.GPUs[j]; g.Utilization != nil {
				g.Utilization = new((i*7*(j+1) + 13*j) % 101)
				g.Memory.Used = g.Memory.Total / 80 * uint64(i)
			}
		}
		m.Take(r)
	}
	m.Take(lab())
	return m
}
