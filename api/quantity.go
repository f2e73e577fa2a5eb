package api

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is an amount of memory. Its text is a whole number with a binary unit: "512MiB", "30GiB".
type Bytes uint64

var byteUnits = []struct {
	name string
	size uint64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseBytes reads a quantity. Units are B, KiB, MiB, GiB and TiB; a fraction is accepted if it is a whole number of bytes.
func ParseBytes(s string) (Bytes, error) {
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		number = strings.TrimSpace(number)
		if n, err := strconv.ParseUint(number, 10, 64); err == nil {
			if n > math.MaxInt64/u.size {
				return 0, fmt.Errorf("%q is too large", s)
			}
			return Bytes(n * u.size), nil
		}
		f, err := strconv.ParseFloat(number, 64)
		if err != nil || strings.ContainsAny(number, "eExXpPnNiI_+-") {
			break
		}
		b := f * float64(u.size)
		if b != math.Trunc(b) || b >= math.MaxInt64 {
			return 0, fmt.Errorf("%q does not come to whole bytes", s)
		}
		return Bytes(b), nil
	}
	return 0, fmt.Errorf("%q is no amount of memory: write a number with KiB, MiB, GiB or TiB, as in 30GiB", s)
}

// String gives the shortest exact text.
func (b Bytes) String() string {
	for _, u := range byteUnits {
		if uint64(b) >= u.size && uint64(b)%u.size == 0 {
			return strconv.FormatUint(uint64(b)/u.size, 10) + u.name
		}
	}
	return "0B"
}

// Short gives a rounded text for people: "29.5 GiB".
func (b Bytes) Short() string {
	for _, u := range byteUnits {
		if uint64(b) >= u.size {
			f := float64(b) / float64(u.size)
			if f >= 100 || f == math.Trunc(f) {
				return fmt.Sprintf("%.0f %s", f, u.name)
			}
			return fmt.Sprintf("%.1f %s", f, u.name)
		}
	}
	return "0"
}

// MarshalText gives String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads what ParseBytes reads.
func (b *Bytes) UnmarshalText(t []byte) (err error) { *b, err = ParseBytes(string(t)); return err }

// Percent is a share: 100 is the whole of one thing. Its text is a number with a percent sign: "40%", "800%".
type Percent float64

// ParsePercent reads a share: digits with at most two decimals and a percent sign.
func ParsePercent(s string) (Percent, error) {
	number, ok := strings.CutSuffix(s, "%")
	whole, fraction, _ := strings.Cut(number, ".")
	f, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || len(fraction) > 2 || strings.Trim(whole+fraction, "0123456789") != "" || f > 1e6 {
		return 0, fmt.Errorf("%q is an invalid share: write a number with a percent sign, as in 40%%", s)
	}
	return Percent(f), nil
}

// String gives the shortest text.
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// MarshalText gives String.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what ParsePercent reads.
func (p *Percent) UnmarshalText(t []byte) (err error) { *p, err = ParsePercent(string(t)); return err }

// Duration is a span of time. Its text is Go's: "5m", "1h30m", "500ms".
type Duration time.Duration

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

// UnmarshalText reads Go's durations that are not negative.
func (d *Duration) UnmarshalText(t []byte) error {
	v, err := time.ParseDuration(string(t))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is no span of time: write it as in 10s, 5m or 2h", t)
	}
	*d = Duration(v)
	return nil
}

// OnOff is on or off. YAML 1.1 tools write them as true and false: both are read.
type OnOff string

// UnmarshalJSON reads "on", "off", true and false; anything else is kept for Validate to refuse.
func (s *OnOff) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	switch v := v.(type) {
	case bool:
		*s = "off"
		if v {
			*s = "on"
		}
	case string:
		*s = OnOff(v)
	default:
		return fmt.Errorf("%s is neither a word nor true or false", b)
	}
	return nil
}
