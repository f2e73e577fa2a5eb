package api

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// HealthSpec is the policy for trouble of GPUs.
type HealthSpec struct {
	Temperature *TemperatureSpec  `json:"temperature,omitempty"`
	XID         map[string]string `json:"xid,omitempty"` // by number: report | close
}

// TemperatureSpec is what happens at a high temperature of a GPU.
type TemperatureSpec struct {
	Warn *Celsius `json:"warn,omitempty"` // default: where the hardware lowers its clocks
}

// What follows from an XID.
const (
	XIDReport = "report" // events and conditions
	XIDClose  = "close"  // and the GPU takes no new lease
)

// Celsius is a temperature. Its text is a whole number with its unit: "85C".
type Celsius int

const leastWarn, mostWarn = 30, 120

// ParseCelsius reads a temperature.
func ParseCelsius(s string) (Celsius, error) {
	number, ok := strings.CutSuffix(s, "C")
	n, err := strconv.ParseUint(number, 10, 16)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s is no temperature: write degrees Celsius with their unit, as in 85C", quote(s))
	}
	return Celsius(n), nil
}

// String gives the text.
func (c Celsius) String() string { return strconv.Itoa(int(c)) + "C" }

// MarshalText gives String.
func (c Celsius) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what ParseCelsius reads.
func (c *Celsius) UnmarshalText(t []byte) (err error) { *c, err = ParseCelsius(string(t)); return err }

func (h *HealthSpec) validate(c *checker, at string) {
	if h == nil {
		return
	}
	if t := h.Temperature; t != nil && t.Warn != nil && (*t.Warn < leastWarn || *t.Warn > mostWarn) {
		c.add(at+".temperature.warn", "%s is out of range: write %s to %s", t.Warn, Celsius(leastWarn), Celsius(mostWarn))
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
