package mps

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
)

// Release identifies a control program, as far as it says.
type Release struct {
	Driver string // "550.163.01", from the program file; empty when it has none
	Branch int    // 550; 0 when Driver is empty
	CUDA   int    // 13000 is CUDA 13.0; 0 when it reports none
	Early  bool   // it takes no options: 550 or older
}

// Text is the most exact version that the program has: of the driver, or of CUDA. Empty when it has neither.
func (r Release) Text() string { return cmp.Or(r.Driver, r.Version()) }

func (r Release) String() string {
	switch {
	case r.Driver != "":
		return r.Driver
	case r.CUDA != 0:
		return "of CUDA " + r.Version()
	case r.Early:
		return "of 550 or older"
	}
	return "of no known version"
}

// Version is the CUDA version, "13.0"; empty when the program does not report it.
func (r Release) Version() string {
	if r.CUDA == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", r.CUDA/1000, r.CUDA%1000/10)
}

// driverText is a driver version, and maxDriverText the length of the longest in bytes.
var driverText = regexp.MustCompile(`^[4-9][0-9]{2}\.[0-9]{2,3}(?:\.[0-9]{2})?$`)

const maxDriverText = len("595.999.02")

// DriverIn returns the driver version that a program contains as a string of its own. Empty without one, and with more than one,
// because then it is not known which is its own.
func DriverIn(program []byte) string {
	found := ""
	for text := range bytes.SplitSeq(program, []byte{0}) {
		if len(text) > maxDriverText || !driverText.Match(text) {
			continue
		}
		if found != "" {
			return ""
		}
		found = string(text)
	}
	return found
}
