package api

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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
				return 0, fmt.Errorf("%s is too large: write %dTiB or less", quote(s), uint64(math.MaxInt64)>>40)
			}
			return Bytes(n * u.size), nil
		}
		f, err := strconv.ParseFloat(number, 64)
		if err != nil || strings.ContainsAny(number, "eExXpPnNiI_+-") {
			break
		}
		b := f * float64(u.size)
		if b != math.Trunc(b) || b >= math.MaxInt64 {
			return 0, fmt.Errorf("%s does not come to whole bytes: round it", quote(s))
		}
		return Bytes(b), nil
	}
	return 0, fmt.Errorf("%s %s", quote(s), notBytes(s))
}

// notBytes says what is wrong with an amount of memory.
func notBytes(s string) string {
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit := strings.ToUpper(strings.TrimSpace(s[len(number):]))
	_, err := strconv.ParseFloat(number, 64)
	written := err == nil && strings.Trim(number, "0123456789.") == ""
	switch {
	case strings.HasPrefix(s, "-") && len(s) > 1 && s[1] >= '0' && s[1] <= '9':
		return "is negative: write an amount of 0B or more, as in 30GiB"
	case s == "0":
		return "has no unit: write 0B"
	case slices.Contains([]string{"none", "off", "unlimited", "infinity", "max"}, strings.ToLower(s)):
		return "is no amount of memory: write one, as in 30GiB, 0B for none, or remove the key for no limit"
	case written && unit == "":
		return fmt.Sprintf("has no unit: write %[1]sMiB or %[1]sGiB", short(number))
	case written && len(unit) <= 3 && strings.ContainsAny(unit[:1], "KMGT") && strings.Trim(unit[1:], "IB") == "":
		return fmt.Sprintf("has a unit that is not read: write %s%siB (1 GiB is 1024 MiB)", short(number), unit[:1])
	}
	return "is no amount of memory: write a number with KiB, MiB, GiB or TiB, as in 30GiB"
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
	if !ok || err != nil || len(fraction) > 2 || strings.Trim(whole+fraction, "0123456789") != "" || f > mostPercent {
		return 0, fmt.Errorf("%s %s", quote(s), notPercent(s))
	}
	return Percent(f), nil
}

// mostPercent is the largest share: ten thousand CPUs.
const mostPercent = 1e6

// notPercent says what is wrong with a share.
func notPercent(s string) string {
	number, sign := strings.CutSuffix(strings.TrimSpace(s), "%")
	number = strings.TrimSpace(number)
	f, err := strconv.ParseFloat(number, 64)
	_, fraction, _ := strings.Cut(number, ".")
	switch {
	case err != nil || strings.Trim(number, "-0123456789.") != "" || math.IsInf(f, 0):
	case f < 0:
		return "is negative: write a share of 0% or more, as in 40%"
	case f > mostPercent:
		return "is too large: write 1000000% or less"
	case len(fraction) > 2:
		return "has too many decimals: write at most two, as in 12.5%"
	case !sign && f > 0 && f < 1:
		return fmt.Sprintf("has no percent sign: write %s%% or %s", short(number), Percent(math.Round(f*1e4)/100))
	case !sign:
		return fmt.Sprintf("has no percent sign: write %s%%", short(number))
	default: // a space before the sign
		return fmt.Sprintf("is an invalid share: write %s%%", short(number))
	}
	return "is an invalid share: write a number with a percent sign, as in 40%"
}

// String gives the shortest text.
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// MarshalText gives String.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what ParsePercent reads.
func (p *Percent) UnmarshalText(t []byte) (err error) { *p, err = ParsePercent(string(t)); return err }

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
