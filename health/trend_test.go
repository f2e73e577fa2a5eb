package health

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// sensors are the readings of a GPU that a trend is made of, as they are at one time.
type sensors struct {
	corrected, uncorrected, replays, crc uint64
	temperature                          int
	throttle                             []string
}

func (s sensors) reading() *gpu.Health {
	return &gpu.Health{
		ECC: &gpu.ECCErrors{
			Corrected:   s.corrected,
			Uncorrected: s.uncorrected,
		},
		PCIeReplays:  &s.replays,
		NVLinkErrors: &gpu.NVLinkErrors{CRC: s.crc},
		Temperature:  &s.temperature,
		Throttle:     s.throttle,
	}
}

// after reads a GPU every 10 minutes: for so many hours with one change between readings, and for a day with another.
func after(hours int, before, day func(*sensors)) (*History, *gpu.Health, time.Time) {
	y, s, now := &History{}, sensors{temperature: 60, corrected: 1e6}, noon
	for i := range 6 * (hours + 24) {
		if change := before; i >= 6*hours {
			day(&s)
		} else if change != nil {
			change(&s)
		}
		y.Add(s.reading(), now)
		now = now.Add(10 * time.Minute)
	}
	return y, s.reading(), now.Add(-10 * time.Minute)
}

func TestTrends(t *testing.T) {
	for name, c := range map[string]struct {
		hours       int
		before, day func(*sensors)
		rule, says  string
	}{
		"nothing changes":                     {48, nil, func(*sensors) {}, "", ""},
		"errors as before":                    {48, func(s *sensors) { s.corrected += 5 }, func(s *sensors) { s.corrected += 5 }, "", ""},
		"more corrected errors":               {48, func(s *sensors) { s.corrected++ }, func(s *sensors) { s.corrected += 20 }, "corrected-errors", "120.0 an hour; before that 6.0 an hour in 48 hours"},
		"the first errors":                    {48, nil, func(s *sensors) { s.corrected++ }, "corrected-errors", "144, 6.0 an hour; before that 0.0 an hour"},
		"a few errors":                        {48, nil, func(s *sensors) { s.corrected = 1e6 + 9 }, "", ""},
		"nothing to compare with":             {12, nil, func(s *sensors) { s.corrected += 20 }, "", ""},
		"an error that was not corrected":     {0, nil, func(s *sensors) { s.uncorrected = 1 }, "", ""},
		"one later":                           {1, nil, func(s *sensors) { s.uncorrected = 1 }, "uncorrected-errors", "in the last day: 1"},
		"more repeated transfers":             {48, nil, func(s *sensors) { s.replays += 3 }, "pcie-replays", "432, 18.0 an hour"},
		"a counter that began again":          {48, func(s *sensors) { s.replays += 100 }, func(s *sensors) { s.replays = 0 }, "", ""},
		"errors of links":                     {48, nil, func(s *sensors) { s.crc += 9 }, "nvlink-errors", "54.0 an hour"},
		"clocks that are lowered":             {48, nil, func(s *sensors) { s.throttle = []string{gpu.ThrottleHardwareThermal} }, "slowed", "in 100.0 % of the readings of the last day, and in 0.0 % before"},
		"clocks that always were lowered":     {48, func(s *sensors) { s.throttle = []string{gpu.ThrottleThermal} }, func(*sensors) {}, "", ""},
		"clocks that the power limit lowered": {48, nil, func(s *sensors) { s.throttle = []string{gpu.ThrottlePowerCap} }, "", ""},
		"a hotter GPU":                        {48, nil, func(s *sensors) { s.temperature = 70 }, "hotter", "is 70 °C, and was 60 °C in the 48 hours before"},
		"a GPU that is a little hotter":       {48, nil, func(s *sensors) { s.temperature = 69 }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			y, h, now := after(c.hours, c.before, c.day)
			found := y.Trends(h, now)
			if c.rule == "" {
				if len(found) != 0 {
					t.Errorf("it found %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].Rule != c.rule || !strings.Contains(found[0].Text, c.says) || found[0].Hint == "" {
				t.Errorf("it found %+v, want %s: %s", found, c.rule, c.says)
			}
		})
	}
}

func TestSpareRowsThatAreLeft(t *testing.T) {
	h := &gpu.Health{Rows: &gpu.RemappedRows{Banks: &gpu.RowBanks{Max: 600, Low: 2, None: 1}}}
	if found := new(History).Trends(h, noon); len(found) != 1 || found[0].Rule != "rows-left" ||
		!strings.Contains(found[0].Text, "few spare rows: 2, with none: 1") {
		t.Errorf("it found %+v", found)
	}
}

// A year of readings keeps a week.
func TestHistoryIsBounded(t *testing.T) {
	var y History
	began := 0
	for i := range 365 * 24 * 2 {
		if y.Add(sensors{}.reading(), noon.Add(time.Duration(i)*30*time.Minute)) {
			began++
		}
	}
	if len(y.Hours) != keptHours || began != 365*24 ||
		!slices.IsSortedFunc(y.Hours, func(a, b Hour) int { return a.Start.Compare(b.Start) }) {
		t.Errorf("%d hours are kept, %d began", len(y.Hours), began)
	}
}
