package mps

import "fmt"

// Program is the control program that is installed now.
type Program struct {
	Release
	Abilities
	Missing string // why there is none; empty if there is one
	Unknown string // why little is known of it; empty if it is known
}

// Differs returns how the program does not belong to the driver, whose CUDA version is 13000 for 13.0; empty if it does, as far
// as it is known. Client, server and driver must have one version: https://docs.nvidia.com/deploy/mps.
func (r Release) Differs(driver string, cuda int) string {
	switch {
	case r.Driver != "" && driver != "" && r.Driver != driver:
	case r.Driver == "" && r.CUDA != 0 && cuda != 0 && r.CUDA/10 != cuda/10:
	default:
		return ""
	}
	return fmt.Sprintf("the MPS control program is %s and the driver is %s (CUDA %s)", r, driver, Release{CUDA: cuda}.Version())
}
