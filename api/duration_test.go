package api_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/api"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "500ms": 500 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "5m": 5 * time.Minute,
		"1h30m": 90 * time.Minute, " 2h ": 2 * time.Hour, "1d": 24 * time.Hour, "0d": 0, "1.5d": 36 * time.Hour,
		"1d12h": 36 * time.Hour, "435d": 435 * 24 * time.Hour,
		"1-00": 24 * time.Hour, "1-12:30": 36*time.Hour + 30*time.Minute, "1-00:00:00": 24 * time.Hour,
		"0-00:00:10": 10 * time.Second, "02:00:00": 2 * time.Hour, "36:00:00": 36 * time.Hour,
		"36499-23:59:59": 36500*24*time.Hour - time.Second, "36500d": 36500 * 24 * time.Hour, "876000h": 36500 * 24 * time.Hour,
	} {
		got, err := api.ParseDuration(text)
		if err != nil || time.Duration(got) != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestParseDurationRefused(t *testing.T) {
	for text, want := range map[string]string{
		"30":                     `"30" has no unit: write 30s for seconds or 30m for minutes`,
		"30:00":                  `"30:00" can be minutes and seconds or hours and minutes: write 30m00s or 30h00m`,
		"-5m":                    `"-5m" is negative: write a duration of 0 or more, as in 5m`,
		"-1-00:00:00":            `"-1-00:00:00" is negative: write a duration of 0 or more, as in 1-00:00:00`,
		"--5m":                   `"--5m" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"":                       `"" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"d":                      `"d" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"soon":                   `"soon" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"1d-2h":                  `"1d-2h" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"1d+2h":                  `"1d+2h" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"+5m":                    `"+5m" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"1.2.3d":                 `"1.2.3d" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"1:2:3:4":                `"1:2:3:4" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"1-2-3":                  `"1-2-3" is no duration: write it as in 10s, 5m, 2h or 1d`,
		"5 min":                  `"5 min" is no duration: did you mean 5m?`,
		"2 days":                 `"2 days" is no duration: did you mean 2d?`,
		"1H":                     `"1H" is no duration: did you mean 1h?`,
		"10 secs":                `"10 secs" is no duration: did you mean 10s?`,
		"1-24:00:00":             `"1-24:00:00" has 24 hours, the highest is 23: write it as in 1-12:30:00, 36h30m or 1d`,
		"1-00:60":                `"1-00:60" has 60 minutes, the highest is 59: write it as in 1-12:30:00, 36h30m or 1d`,
		"00:00:99":               `"00:00:99" has 99 seconds, the highest is 59: write it as in 1-12:30:00, 36h30m or 1d`,
		"36500d1ns":              `"36500d1ns" is too long: write 36500d or less`,
		"99999999999h":           `"99999999999h" is too long: write 36500d or less`,
		"99999999999999999999s":  `"99999999999999999999s" is too long: write 36500d or less`,
		"36500d99999h":           `"36500d99999h" is too long: write 36500d or less`,
		"999999999-00":           `"999999999-00" is too long: write 36500d or less`,
		strings.Repeat("9", 400): `"` + strings.Repeat("9", 60) + `…" has no unit: write ` + strings.Repeat("9", 60) + `…s for seconds or ` + strings.Repeat("9", 60) + `…m for minutes`,
	} {
		if got, err := api.ParseDuration(text); err == nil || err.Error() != want {
			t.Errorf("%.40q is %s, %v; want %s", text, got, err, want)
		}
	}
}

// TestParseDurationProperties: every duration's own text is read back, any text gives a duration of 0 or more or one short
// sentence.
func TestParseDurationProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := api.Duration(rapid.Int64Range(0, int64(36500*24*time.Hour)).Draw(t, "duration"))
		if got, err := api.ParseDuration(d.String()); err != nil || got != d {
			t.Fatalf("%s is read as %s, %v", d, got, err)
		}
		text := rapid.OneOf(
			rapid.String(),
			rapid.StringMatching(`-?[0-9.]{0,12}[-:dhmsu]?[0-9]{0,12}[-:dhms]{0,2}[0-9:]{0,9}`),
		).Draw(t, "text")
		if got, err := api.ParseDuration(text); got < 0 || err != nil && (len(err.Error()) > 500 || got != 0) {
			t.Fatalf("%q is read as %d, %v", text, got, err)
		}
	})
}
