package api

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a duration of the spec, of a request and of a flag. ParseDuration reads it; its text is Go's: "5m", "1h30m",
// "500ms".
type Duration time.Duration

// day is 24 hours: clocks that change between summer and winter do not count.
const day = 24 * time.Hour

// mostDays is the longest duration, a hundred years: a limit that no sum of a few of them exceeds.
const mostDays = 36500

// ParseDuration reads a duration of 0 or more: Go's ("500ms", "5m", "1h30m"), the same with days before ("1d", "1d12h"), and
// those forms of Slurm that have one meaning: days-hours ("1-12", "1-12:00", "1-12:00:00") and hours:minutes:seconds
// ("36:00:00"). A number without a unit and the form "30:00" are refused with both of their meanings, because Slurm reads
// minutes there, and others seconds or hours.
func ParseDuration(s string) (Duration, error) {
	d, err := parseDuration(strings.TrimSpace(s))
	if err == nil && d > mostDays*day {
		err = ErrDurationTooLong
	}
	if err != nil {
		return 0, fmt.Errorf("%s %w", quote(s), err)
	}
	return Duration(d), nil
}

func parseDuration(s string) (time.Duration, error) {
	if strings.HasPrefix(s, "-") {
		if _, err := parseDuration(s[1:]); err == nil {
			return 0, fmt.Errorf("is negative: write a duration of 0 or more, as in %s", s[1:])
		}
		return 0, errNoDuration
	}
	switch {
	case s != "0" && digits(s):
		return 0, fmt.Errorf("has no unit: write %[1]ss for seconds or %[1]sm for minutes", short(s))
	case strings.Contains(s, ":") || strings.Contains(s, "-"):
		return parseClock(s)
	}
	rest := s
	var days time.Duration
	if number, after, ok := strings.Cut(s, "d"); ok && number != "" && strings.Trim(number, "0123456789.") == "" {
		f, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return 0, errNoDuration
		}
		if f > mostDays {
			return 0, ErrDurationTooLong
		}
		days, rest = time.Duration(math.Round(f*float64(day))), after
	}
	if rest == "" && rest != s {
		return days, nil
	}
	if strings.HasPrefix(rest, "+") {
		return 0, errNoDuration
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err == nil:
		return days + min(d, mostDays*day+1), nil // a sum of two that fits
	case tooLong(rest):
		return 0, ErrDurationTooLong
	}
	if meant := abbreviated(s); meant != s {
		if _, err := parseDuration(meant); err == nil {
			return 0, fmt.Errorf("is no duration: did you mean %s?", meant)
		}
	}
	return 0, errNoDuration
}

var (
	errNoDuration = errors.New("is no duration: write it as in 10s, 5m, 2h or 1d")

	// ErrDurationTooLong is the error of a duration of more than a hundred years.
	ErrDurationTooLong = fmt.Errorf("is too long: write %dd or less", mostDays)
)

// tooLong reports whether Go's text would be a duration if its numbers were smaller.
func tooLong(s string) bool {
	var smaller strings.Builder
	number := false
	for _, r := range s {
		digit := r >= '0' && r <= '9'
		switch {
		case !digit:
			smaller.WriteRune(r)
		case !number:
			smaller.WriteByte('0')
		}
		number = digit
	}
	_, err := time.ParseDuration(smaller.String())
	return err == nil
}

// parseClock reads [days-]hours[:minutes[:seconds]], without days all three.
func parseClock(s string) (time.Duration, error) {
	days, clock, dayed := strings.Cut(s, "-")
	if !dayed {
		days, clock = "0", s
	}
	fields := append([]string{days}, strings.Split(clock, ":")...)
	for _, f := range fields {
		if !digits(f) {
			return 0, errNoDuration
		}
	}
	switch {
	case len(fields) > 4:
		return 0, errNoDuration
	case !dayed && len(fields) == 3:
		return 0, fmt.Errorf(
			"can be minutes and seconds or hours and minutes: write %sm%ss or %[1]sh%[2]sm", short(fields[1]), short(fields[2]),
		)
	}
	// Slurm accepts more than 23 hours without days, and more than 59 of nothing else.
	bounds := []int{mostDays, 23, 59, 59}
	if !dayed {
		bounds[1] = mostDays * 24
	}
	var d time.Duration
	for i, unit := range []time.Duration{day, time.Hour, time.Minute, time.Second} {
		if i >= len(fields) {
			break
		}
		n, err := strconv.Atoi(fields[i])
		if err != nil || n > bounds[i] {
			if i == 0 || !dayed && i == 1 {
				return 0, ErrDurationTooLong
			}
			return 0, fmt.Errorf(
				"has %s %s, the highest is %d: write it as in 1-12:30:00, 36h30m or 1d", short(fields[i]),
				[]string{"", "hours", "minutes", "seconds"}[i], bounds[i],
			)
		}
		d += time.Duration(n) * unit
	}
	return d, nil
}

// abbreviated writes units that people write out with their letter: "5 min" is 5m.
func abbreviated(s string) string {
	s = strings.ToLower(strings.Join(strings.Fields(s), ""))
	for _, unit := range [][]string{
		{"ms", "milliseconds", "millisecond", "msec"},
		{"d", "days", "day"},
		{"h", "hours", "hour", "hrs", "hr"},
		{"m", "minutes", "minute", "mins", "min"},
		{"s", "seconds", "second", "secs", "sec"},
	} {
		for _, long := range unit[1:] {
			s = strings.ReplaceAll(s, long, unit[0])
		}
	}
	return s
}

// String gives Go's text without zero parts at the end.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalText gives String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what ParseDuration reads.
func (d *Duration) UnmarshalText(t []byte) (err error) {
	*d, err = ParseDuration(string(t))
	return err
}
