//go:build cgo

package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
)

// TestSimSensors reads boards of three generations with an older and a newer driver, idle and under a limit of the server.
func TestSimSensors(t *testing.T) {
	const gpus = "gpus:\n  - {model: A100-SXM4-40GB, layout: [3g.20gb@0]}\n  - {model: H100-SXM5-80GB}\n" +
		"  - {model: RTX-PRO-6000-96GB}\n  - {model: H100-SXM5-80GB}\n"
	for _, driver := range []string{"470", "535", "580"} {
		t.Run(driver, func(t *testing.T) {
			n := serve(t, "driver: \""+driver+"\"\n"+gpus, worker.Deadlines{})
			n.readGPUs(testContext(t))
			read := func(i int) gpu.Sensors {
				t.Helper()
				s, err := n.Sensors(testContext(t), n.gpus[i])
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			clocks := &gpu.Clocks{SM: 1410, MaxSM: 1410, Memory: 1593}
			idle := []gpu.Sensors{
				{
					Temperature: new(34), MemoryTemperature: new(41), PowerUsage: new(uint64(62_000)), PowerLimit: new(uint64(400_000)),
					Throttle: []string{}, Clocks: clocks,
				},
				{
					Temperature: new(34), MemoryTemperature: new(41), PowerUsage: new(uint64(62_000)), PowerLimit: new(uint64(700_000)),
					Throttle: []string{}, Clocks: clocks,
				},
				{Temperature: new(34), Throttle: []string{}, Clocks: clocks},
			}
			for i, want := range idle {
				if diff := cmp.Diff(want, read(i)); diff != "" {
					t.Errorf("GPU %d (-want +got):\n%s", i, diff)
				}
			}
			for _, s := range [][]string{
				{"temperature", "84"},
				{"memory-temperature", "90"},
				{"power", "290"},
				{"power-limit", "350"},
				{"module-limit", "300"},
				{"throttle", "power-cap"},
				{"clocks", "1155", "1215"},
				{"fan", "55"},
			} {
				n.ctl(append([]string{"sensor", "0"}, s...)...)
			}
			want := gpu.Sensors{
				Temperature: new(84), MemoryTemperature: new(90), PowerUsage: new(uint64(290_000)), PowerLimit: new(uint64(300_000)),
				Throttle: []string{gpu.ThrottlePowerCap}, Clocks: &gpu.Clocks{SM: 1155, MaxSM: 1410, Memory: 1215}, Fan: new(55),
			}
			if diff := cmp.Diff(want, read(0)); diff != "" {
				t.Errorf("under load (-want +got):\n%s", diff)
			}
			n.ctl("sensor", "0", "module-limit", "0")
			if s := read(0); s.PowerLimit == nil || *s.PowerLimit != 350_000 {
				t.Errorf("without a limit of the server: %v", s.PowerLimit)
			}

			// A part that the board does not report is missing, whatever it is; one that fails is an error, and so is a lost GPU.
			for call, lacks := range map[string]func(*gpu.Sensors) bool{
				"DeviceGetTemperature": func(s *gpu.Sensors) bool { return s.Temperature == nil },
				"DeviceGetFieldValues": func(s *gpu.Sensors) bool { return s.MemoryTemperature == nil },
				"DeviceGetPowerUsage":  func(s *gpu.Sensors) bool { return s.PowerUsage == nil && s.PowerLimit != nil },
				"DeviceGetClockInfo":   func(s *gpu.Sensors) bool { return s.Clocks.SM == 0 && s.Clocks.Memory != 0 },
				"DeviceGetFanSpeed":    func(s *gpu.Sensors) bool { return s.Fan == nil },
			} {
				n.ctl("fault", "add", call, "fail", "--code", "3", "--gpu", "1")
				if s := read(1); !lacks(&s) || len(s.Throttle) > 0 {
					t.Errorf("without %s: %+v", call, s)
				}
			}
			// What the board sets was not read of the last one before.
			n.ctl("fault", "add", "DeviceGetMaxClockInfo", "fail", "--code", "3", "--gpu", "3")
			if s := read(3); s.Clocks.MaxSM != 0 || s.Clocks.SM == 0 {
				t.Errorf("without DeviceGetMaxClockInfo: %+v", s)
			}
			n.ctl("fault", "add", "DeviceGetEnforcedPowerLimit", "fail", "--code", "3", "--gpu", "1")
			if s := read(1); s.PowerLimit == nil || *s.PowerLimit != 700_000 {
				t.Errorf("without the enforced limit: %v; want that which is set", s.PowerLimit)
			}
			n.ctl("fault", "add", "DeviceGetClockInfo", "fail", "--code", "999", "--gpu", "1")
			if _, err := n.Sensors(testContext(t), n.gpus[1]); !errors.Is(err, gpu.ErrUnknown) {
				t.Errorf("a failed call: %v", err)
			}
			n.ctl("fault", "add", "DeviceGetPowerUsage", "fail", "--code", "15", "--gpu", "1")
			if _, err := n.Sensors(testContext(t), n.gpus[1]); !errors.Is(err, gpu.ErrLost) {
				t.Errorf("lost GPU: %v", err)
			}
		})
	}
}

// TestSimSensorsAreOneMessage counts messages and calls: what the board sets was read before.
func TestSimSensorsAreOneMessage(t *testing.T) {
	n := serve(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB}]\n", worker.Deadlines{})
	n.readGPUs(testContext(t))
	if _, err := n.Sensors(testContext(t), n.gpus[0]); err != nil { // It gets the handle.
		t.Fatal(err)
	}
	total := func() (sum uint64) {
		for _, k := range n.calls() {
			sum += uint64(k)
		}
		return sum
	}
	m, c := n.Stats().Messages, total()
	if _, err := n.Sensors(testContext(t), n.gpus[0]); err != nil {
		t.Fatal(err)
	}
	if m, c = n.Stats().Messages-m, total()-c; m != 1 || c != 8 {
		t.Errorf("%d messages, %d calls", m, c)
	}
}

// TestSimSensorsLackingSymbols reads with a library that has only some of the functions.
func TestSimSensorsLackingSymbols(t *testing.T) {
	n := serve(t, "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB}]\n", worker.Deadlines{})
	n.ctl("sensor", "0", "module-limit", "300")
	start := lackingClients(t, n)
	all := exported(t, "580")
	read := func(t *testing.T, symbols []string) gpu.Sensors {
		t.Helper()
		c := start(t, symbols)
		info, err := c.Node(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Sensors(testContext(t), info.GPUs[0].UUID)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	whole := read(t, all)
	for _, tt := range []struct {
		lacks string
		want  func(*gpu.Sensors)
	}{
		{"nvmlDeviceGetTemperature", func(s *gpu.Sensors) { s.Temperature = nil }},
		{"nvmlDeviceGetFieldValues", func(s *gpu.Sensors) { s.MemoryTemperature = nil }},
		{"nvmlDeviceGetPowerUsage", func(s *gpu.Sensors) { s.PowerUsage = nil }},
		{"nvmlDeviceGetEnforcedPowerLimit", func(s *gpu.Sensors) { s.PowerLimit = new(uint64(400_000)) }},
		{"nvmlDeviceGetCurrentClocksEventReasons", func(*gpu.Sensors) {}},
		{"nvmlDeviceGetClockInfo", func(s *gpu.Sensors) { s.Clocks = &gpu.Clocks{MaxSM: 1410} }},
		{"nvmlDeviceGetMaxClockInfo", func(s *gpu.Sensors) { s.Clocks = &gpu.Clocks{SM: 1410, Memory: 1593} }},
		{"nvmlDeviceGetFanSpeed", func(*gpu.Sensors) {}},
	} {
		t.Run(tt.lacks, func(t *testing.T) {
			got := read(t, slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == tt.lacks }))
			want := whole
			tt.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("all", func(t *testing.T) {
		if diff := cmp.Diff(gpu.Sensors{}, read(t, essential)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
