package health

import (
	"reflect"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// A GPU is hot from its limit until it is 5 °C below, and nothing is known after a failed reading or an old one.
func TestHeat(t *testing.T) {
	const failed = -1
	warn, slowdown := 85, 89
	for name, c := range map[string]struct {
		policy   Policy
		slowdown *int
		readings []int // °C, 10 s apart
		hot      []bool
	}{
		"it rises and falls":                      {Policy{Warn: &warn}, &slowdown, []int{84, 85, 84, 81, 80, 84, 86}, []bool{false, true, true, true, false, false, true}},
		"the limit of the board":                  {Policy{}, &slowdown, []int{88, 89, 85, 84}, []bool{false, true, true, false}},
		"no limit is known":                       {Policy{}, nil, []int{120}, []bool{false}},
		"a failed reading ends it":                {Policy{Warn: &warn}, nil, []int{90, failed, 84, 90}, []bool{true, false, false, true}},
		"it stays hot: no other leases are added": {Policy{Warn: &warn}, nil, []int{90, 95, 99}, []bool{true, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var w Heat
			at := time.Unix(1e9, 0)
			for i, degrees := range c.readings {
				var h *gpu.Health
				if degrees != failed {
					h = &gpu.Health{Temperature: &degrees, SlowdownTemperature: c.slowdown}
				}
				at = at.Add(10 * time.Second)
				if w = w.After(h, c.policy, at); w.Hot != c.hot[i] {
					t.Errorf("reading %d, %d °C: %+v", i, degrees, w)
				}
			}
		})
	}

	degrees, at := 90, time.Unix(1e9, 0)
	hot := Heat{}.After(&gpu.Health{Temperature: &degrees}, Policy{Warn: &warn}, at)
	if !hot.At(at.Add(HeatLasts - 1)).Hot {
		t.Error("a reading of now is old")
	}
	if hot.At(at.Add(HeatLasts)).Hot {
		t.Error("an old reading says that it is hot")
	}
	degrees = 84
	if w := hot.After(&gpu.Health{Temperature: &degrees}, Policy{Warn: &warn}, at.Add(HeatLasts)); w.Hot {
		t.Error("it stays hot although nothing was known between")
	}
	if w := (Heat{}).After(&gpu.Health{}, Policy{Warn: &warn}, at); w.Hot {
		t.Error("it is hot without a temperature")
	}
}

// Of a hot GPU the leases of the lowest priority are paused, and no others: never all.
func TestPauses(t *testing.T) {
	const low, normal, high = -1, 0, 1
	login := Running{Lease: "login", Priority: low, Never: "it is a login"}
	for name, c := range map[string]struct {
		running []Running
		want    Pause
	}{
		"none":                        {nil, Pause{}},
		"one":                         {[]Running{{"a", low, "", false}}, Pause{}},
		"one priority":                {[]Running{{"a", normal, "", false}, {"b", normal, "", false}}, Pause{}},
		"low and normal":              {[]Running{{"a", low, "", false}, {"b", normal, "", false}, {"c", low, "", false}}, Pause{Leases: []string{"a", "c"}}},
		"normal and high":             {[]Running{{"a", high, "", false}, {"b", normal, "", false}}, Pause{Leases: []string{"b"}}},
		"three priorities":            {[]Running{{"a", high, "", false}, {"b", normal, "", false}, {"c", low, "", false}}, Pause{Leases: []string{"c"}}},
		"one of the lowest cannot be": {[]Running{{"a", low, "", false}, login, {"b", high, "", false}}, Pause{Leases: []string{"a"}, Never: []Running{login}}},
		"none of the lowest can be":   {[]Running{login, {"a", normal, "", false}, {"b", high, "", false}}, Pause{Never: []Running{login}}},
		"the highest is frozen":       {[]Running{{"a", low, "", false}, {"b", high, "", true}}, Pause{}},
		"one of two higher is frozen": {[]Running{{"a", low, "", false}, {"b", high, "", true}, {"c", normal, "", false}}, Pause{Leases: []string{"a"}}},
		"the lowest is frozen":        {[]Running{{"a", low, "", true}, {"b", normal, "", false}, {"c", high, "", false}}, Pause{Leases: []string{"a"}}},
		"the highest cannot be":       {[]Running{{"a", low, "", false}, {"b", high, "it is attached", false}}, Pause{Leases: []string{"a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Pauses(c.running); !reflect.DeepEqual(got, c.want) {
				t.Errorf("it is %+v, want %+v", got, c.want)
			}
		})
	}
}

// A spec that pauses leases on a GPU whose heat cannot be known is reported.
func TestPausesThatCannotBe(t *testing.T) {
	degrees, warn := 40, 85
	for name, c := range map[string]struct {
		reading gpu.Health
		policy  Policy
		found   bool
	}{
		"it can":                  {gpu.Health{Temperature: &degrees}, Policy{Warn: &warn, PauseLow: true}, false},
		"by the limit of a board": {gpu.Health{Temperature: &degrees, SlowdownTemperature: &warn}, Policy{PauseLow: true}, false},
		"no limit":                {gpu.Health{Temperature: &degrees}, Policy{PauseLow: true}, true},
		"no temperature":          {gpu.Health{}, Policy{Warn: &warn, PauseLow: true}, true},
		"it is not desired":       {gpu.Health{}, Policy{}, false},
	} {
		if found := Readings(&c.reading, c.policy, nil); has(found, "pause-low") != c.found || len(found) > 1 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
