package api

import (
	"fmt"
	"strconv"
	"strings"
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
