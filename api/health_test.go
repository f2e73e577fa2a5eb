package api_test

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

func TestParseWatts(t *testing.T) {
	for text, want := range map[string]api.Watts{"300W": 300, "0W": 0, "1200W": 1200, "4294967W": 4294967} {
		got, err := api.ParseWatts(text)
		if err != nil || got != want || got.String() != text || got.Milliwatts() != uint64(want)*1000 {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, says := range map[string]string{
		"300":      "has no unit: write 300W",
		"300 W":    "has a unit that is not read: write 300W",
		"300w":     "has a unit that is not read: write 300W",
		"0.3kW":    "has a unit that is not read: write 300W",
		"299.5W":   "is no whole number of watts: write 300W",
		"-5W":      "is negative: write a limit as in 300W",
		"9999999W": "is too large: write 4294967W or less",
		"much":     "is no power: write a whole number of watts, as in 300W",
		"":         "is no power: write a whole number of watts, as in 300W",
		"W":        "is no power: write a whole number of watts, as in 300W",
		"1e3W":     "is no power: write a whole number of watts, as in 300W",
		"80%":      "is no power: write a whole number of watts, as in 300W",
	} {
		if _, err := api.ParseWatts(text); err == nil || !strings.HasSuffix(err.Error(), says) {
			t.Errorf("%q: %v; want %s", text, err, says)
		}
	}
}
