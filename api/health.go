package api

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// HealthSpec is policy for the condition of GPUs. An entry of gpus wins over node.
type HealthSpec struct {
	PowerCap    *Watts            `json:"power_cap,omitempty"` // the power limit; default: as the GPU has it
	Temperature *TemperatureSpec  `json:"temperature,omitempty"`
	XID         map[string]string `json:"xid,omitempty"` // by number: report | close
}

// TemperatureSpec is what happens at a high temperature of a GPU.
type TemperatureSpec struct {
	Warn *Celsius `json:"warn,omitempty"` // default: where the hardware lowers its clocks
	Do   string   `json:"do,omitempty"`   // tell | pause-low; default: tell
}

// What follows from a high temperature.
const (
	TemperatureReport   = "tell"      // a condition
	TemperaturePauseLow = "pause-low" // and the leases of the lowest priority are paused
)

// What follows from an XID.
const (
	XIDReport = "report" // events and conditions
	XIDClose  = "close"  // and the GPU takes no new lease
)

func (h *HealthSpec) validate(c *checker, at string) {
	if h == nil {
		return
	}
	if h.PowerCap != nil && *h.PowerCap == 0 {
		c.add(at+".power_cap", "is 0W: write a limit that the board can have, as in 300W, or remove the key")
	}
	if t := h.Temperature; t != nil {
		if t.Warn != nil && (*t.Warn < leastWarn || *t.Warn > mostWarn) {
			c.add(at+".temperature.warn", "%s is out of range: write %s to %s", t.Warn, Celsius(leastWarn), Celsius(mostWarn))
		}
		c.word(at+".temperature.do", t.Do)
	}
	for _, number := range slices.Sorted(maps.Keys(h.XID)) {
		path := at + ".xid." + number
		if n, err := strconv.ParseUint(number, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != number {
			c.add(path, "%s is no number of an XID: write it as the kernel log does, as in xid: {\"79\": report}", quote(number))
		}
		if do := h.XID[number]; do != XIDReport && do != XIDClose {
			c.add(path, "%s is not known: write %s or %s", quote(do), XIDReport, XIDClose)
		}
	}
}

func (h *HealthSpec) bounds(c *checker, at string) {
	if h != nil {
		c.most(at+".xid", "XIDs", len(h.XID), maxXIDs)
	}
}

// Watts is a power. Its text is a whole number with the unit: "300W".
type Watts uint64

// mostWatts is more than any board needs, and small enough that its milliwatts are a value of the driver.
const mostWatts = math.MaxUint32 / 1000

// ParseWatts reads a power.
func ParseWatts(s string) (Watts, error) {
	number, ok := strings.CutSuffix(s, "W")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || n > mostWatts {
		return 0, fmt.Errorf("%s %s", quote(s), notWatts(s))
	}
	return Watts(n), nil
}

// notWatts says what is wrong with a power.
func notWatts(s string) string {
	number := strings.TrimSpace(strings.TrimRight(s, "kmMwWatTS "))
	unit := strings.TrimSpace(s[len(number):])
	f, err := strconv.ParseFloat(number, 64)
	whole := err == nil && strings.Trim(number, "0123456789") == ""
	switch {
	case err != nil || strings.Trim(number, "-0123456789.") != "" || math.IsInf(f, 0):
	case f < 0:
		return "is negative: write a limit as in 300W"
	case f > mostWatts:
		return fmt.Sprintf("is too large: write %dW or less", uint64(mostWatts))
	case unit == "":
		return fmt.Sprintf("has no unit: write %sW", short(number))
	case strings.EqualFold(unit, "kW") && f*1000 == math.Trunc(f*1000):
		return fmt.Sprintf("has a unit that is not read: write %.0fW", f*1000)
	case !whole:
		return fmt.Sprintf("is no whole number of watts: write %.0fW", math.Round(f))
	default: // a space, or another spelling
		return fmt.Sprintf("has a unit that is not read: write %sW", short(number))
	}
	return "is no power: write a whole number of watts, as in 300W"
}

// String gives the text.
func (w Watts) String() string { return strconv.FormatUint(uint64(w), 10) + "W" }

// Milliwatts is the driver's unit.
func (w Watts) Milliwatts() uint64 { return uint64(w) * 1000 }

// MarshalText gives String.
func (w Watts) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads what ParseWatts reads.
func (w *Watts) UnmarshalText(t []byte) (err error) { *w, err = ParseWatts(string(t)); return err }
