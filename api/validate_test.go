package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/api"
)

// The rules themselves are seen at work, with their positions, by the golden files of package spec.

func TestValidateZero(t *testing.T) {
	got := (&api.Spec{}).Validate()
	want := api.FieldErrors{{Path: "version", Message: "is missing: write version: v1"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestNormalize(t *testing.T) {
	s := api.Spec{
		Version: "v1",
		Node:    api.NodeSpec{Enforce: "off"},
		GPUs: []api.GPUSpec{
			{Select: api.Selector{PCI: api.List[string]{"0F:00.0"}}, Mode: api.ModeTimeslice},
			{Select: api.Selector{All: true}, Mode: api.ModeMIG, MIG: &api.MIGSpec{Dynamic: true}},
		},
		Tenants: []api.TenantSpec{
			{Name: "t", Grants: []api.GrantSpec{{Name: "a", MIG: "1g.5gb"}, {Name: "b", Timeslice: &api.ShareSpec{Share: 40}}}},
		},
	}
	s.Normalize()
	got, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":"v1","node":{"enforce":"observe","isolation":{"logins":"open","migration":"deny","unattributed":"report","unfrozen":"report","attach":"member","units":["atd.service","cron.service","crond.service"]},"gpu_memory_reserve":"1GiB"},` +
		`"gpus":[{"select":{"pci":"0000:0f:00.0"},"mode":"timeslice","timeslice":{"round":"1s"}},{"select":{"all":true},"mode":"mig","mig":{"dynamic":true,"keep":"5m"}}],` +
		`"tenants":[{"name":"t","priority":"normal","overuse":{"gpu_memory":"kill","grace":"10s"},"grants":[{"name":"a","mig":"1g.5gb","max_leases":1},{"name":"b","timeslice":{"share":"40%"}}]}]}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Error(d)
	}
	s.Normalize()
	if again, _ := json.Marshal(s); string(again) != want {
		t.Errorf("the second time changes it to %s", again)
	}
	if bad := s.Validate(); bad != nil {
		t.Errorf("the defaults are invalid: %v", bad)
	}
}

func TestCanonicalPCI(t *testing.T) {
	for in, want := range map[string]string{
		"0000:07:00.0": "0000:07:00.0", "07:00.0": "0000:07:00.0", "00000000:0F:00.0": "0000:0f:00.0", "10000:01:00.0": "10000:01:00.0",
		"": "", "7": "", "0000:7:00.0": "", "0000:07:00": "", "07:00.00": "", "zz:00.0": "", "1:2:3:4": "", "0000:07:0g.0": "",
	} {
		if got, ok := api.CanonicalPCI(in); got != want || ok != (want != "") {
			t.Errorf("CanonicalPCI(%q) = %q, %v, want %q", in, got, ok, want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"share", "memory", "cap", "timeslice"}
	for word, want := range map[string]string{
		"shrae": "share", "shares": "share", "memroy": "memory", "mem": "", "timeslcie": "timeslice", "caps": "cap", "x": "", "": "", strings.Repeat("share", 1000): "",
	} {
		got, ok := api.Nearest(word, known)
		if got != want || ok != (want != "") {
			t.Errorf("Nearest(%q) = %q, %v, want %q", word, got, ok, want)
		}
	}
}

func TestQuantitiesReadWhatTheyWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := api.Bytes(rapid.Uint64Range(0, 1<<62).Draw(t, "bytes"))
		if got, err := api.ParseBytes(b.String()); err != nil || got != b {
			t.Fatalf("%d is written %s and read %d (%v)", b, b, got, err)
		}
		p := api.Percent(float64(rapid.IntRange(0, 1_000_000).Draw(t, "percent")) / 100)
		if got, err := api.ParsePercent(p.String()); err != nil || got != p {
			t.Fatalf("%v is written %s and read %v (%v)", float64(p), p, float64(got), err)
		}
		d := api.Duration(rapid.Int64Range(0, 1<<60).Draw(t, "duration"))
		var got api.Duration
		if err := got.UnmarshalText([]byte(d.String())); err != nil || got != d {
			t.Fatalf("%d is written %s and read %d (%v)", d, d, got, err)
		}
	})
}

func TestClosedUnits(t *testing.T) {
	for unit, valid := range map[string]bool{
		"cron.service": true, "batch.slice": true, "jobs.scope": true, "user@.service": false, "user@1000.service": false, "user-1000.slice": false,
		"user.slice": false, "-.slice": false, "init.scope": false, "gpushared.service": false, "cron": false, "atd.timer": false, "../atd.service": false, "a*.service": false, "": false,
	} {
		s := api.Spec{Version: "v1", Node: api.NodeSpec{Isolation: &api.IsolationSpec{Units: []string{unit}}}}
		if bad := s.Validate(); (bad == nil) != valid {
			t.Errorf("%q: %v", unit, bad)
		}
	}
	twice := api.Spec{Version: "v1", Node: api.NodeSpec{Isolation: &api.IsolationSpec{Units: []string{"atd.service", "atd.service"}}}}
	if twice.Validate() == nil {
		t.Error("a unit may be named twice")
	}
}
