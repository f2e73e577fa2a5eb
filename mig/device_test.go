package mig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
)

func TestPlanDevice(t *testing.T) {
	yes, no := true, false
	on := gpu.MIGState{Capable: true, Current: true, Pending: true, Resetless: &yes}
	off := gpu.MIGState{Capable: true, Resetless: &yes}
	p := a100()
	lacks := func(m gpu.MIGState) gpu.MIGState {
		m.Missing = &gpu.MissingMIG{Library: "12.470", Change: []string{"nvmlGpuInstanceDestroy"}}
		return m
	}
	for _, tc := range []struct {
		name string
		d    Device
		t    Target
		o    Options
		want []string // the steps
		err  string
	}{
		{name: "on as desired", d: Device{MIG: on, Profiles: p, Present: presentFrom(t, p, "7g.40gb@0")}, t: Target{On: true, Requests: Requests("7g.40gb")}},
		{name: "off as desired", d: Device{MIG: off}, t: Target{}},
		{name: "a GPU without MIG", d: Device{}, t: Target{}},
		{name: "on, then instances created", d: Device{MIG: off, Profiles: p}, t: Target{On: true, Requests: Requests("7g.40gb")}, want: []string{"turn on MIG mode", "create 7g.40gb at 0"}},
		{name: "instances destroyed, then off", d: Device{MIG: on, Profiles: p, Present: presentFrom(t, p, "3g.20gb@4", "1g.5gb@0 s")}, t: Target{}, want: []string{"destroy 1g.5gb at 0", "destroy 3g.20gb at 4", "turn off MIG mode"}},
		{name: "off with an instance in use", d: Device{MIG: on, Profiles: p, Present: presentFrom(t, p, "3g.20gb@4 u")}, t: Target{}, err: "cannot change the MIG layout: 3g.20gb at 4 (lease 3g.20gb) is in use"},
		{name: "off with a foreign instance", d: Device{MIG: on, Profiles: p, Present: presentFrom(t, p, "3g.20gb@4 f")}, t: Target{}, err: "cannot change the MIG layout: MIG mode cannot be turned off: 3g.20gb at 4 is not managed by gpushare"},
		{name: "off with a foreign instance, allowed", d: Device{MIG: on, Profiles: p, Present: presentFrom(t, p, "3g.20gb@4 f")}, t: Target{}, o: Options{TakeForeign: true}, want: []string{"destroy 3g.20gb at 4", "turn off MIG mode"}},
		{name: "infeasible, so the mode is not changed", d: Device{MIG: off, Profiles: p}, t: Target{On: true, Requests: Requests("7g.40gb", "1g.5gb")}, err: "they need 9 memory slices"},
		{name: "a reset that is not allowed", d: Device{MIG: gpu.MIGState{Capable: true, Resetless: &no}, Profiles: p}, t: Target{On: true}, err: "--allow-reset"},
		{name: "profiles not reported", d: Device{MIG: off}, t: Target{On: true, Requests: Requests("7g.40gb")}, err: "only while MIG mode is on"},
		{name: "the mode cannot be read", d: Device{MIG: gpu.MIGState{Missing: &gpu.MissingMIG{Library: "12.470", Read: []string{"nvmlDeviceGetMigMode"}}}}, t: Target{On: true}, err: "the NVML library 12.470 lacks nvmlDeviceGetMigMode"},
		{name: "instances cannot be created, so the mode is not changed", d: Device{MIG: lacks(off), Profiles: p}, t: Target{On: true}, err: "the NVML library 12.470 lacks nvmlGpuInstanceDestroy"},
		{name: "instances cannot be changed, and need not be", d: Device{MIG: lacks(on), Profiles: p, Present: presentFrom(t, p, "7g.40gb@0")}, t: Target{On: true, Requests: Requests("7g.40gb")}},
		{name: "instances cannot be destroyed", d: Device{MIG: lacks(on), Profiles: p, Present: presentFrom(t, p, "7g.40gb@0")}, t: Target{}, err: "lacks nvmlGpuInstanceDestroy"},
		{name: "profiles not reported, but no instance requested", d: Device{MIG: off}, t: Target{On: true}, want: []string{"turn on MIG mode"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := PlanDevice(tc.d, tc.t, tc.o)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range r.Steps("GPU-1") {
				got = append(got, s.Text)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
			if r.Empty() != (len(tc.want) == 0) {
				t.Errorf("Empty() = %v", r.Empty())
			}
		})
	}
}
