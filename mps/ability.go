package mps

import (
	"fmt"
	"slices"
)

// Abilities are what the control program of a branch of the driver can do. They differ, and it reports almost nothing of it.
type Abilities struct {
	// MultiUser: one server for the processes of all users. Without it there is a server for each user and only one of them
	// runs at a time: the processes of another user wait, without a message, until those of the first have ended.
	MultiUser bool
	// OwnerOnly: only the owner changes defaults, and only through the privileged socket. Without it every process that may
	// connect to the tenants' socket changes them.
	OwnerOnly bool
	// ServersOwnerOnly is the same for the limits of a server that runs.
	ServersOwnerOnly bool
	// MaxClients is the most clients that a server has on one whole GPU. Each process is at least one.
	MaxClients int
}

// known are the branches whose control program was run, ascending. Sources: the programs of 535.261.03 and 550.163.01 of
// Debian (no argument next to -f, defaults that anybody sets in 535), and NVIDIA's of the others; for the clients NVIDIA's manual of
// each, from Volta on: 48, and 60 since R615 with the default of CUDA_DEVICE_MAX_CONNECTIONS. No GPU confirmed either.
var known = []struct {
	branch int // 535
	cuda   int // the binary version that -v prints, 13000 is CUDA 13.0; 0 when it prints none
	Abilities
}{
	{535, 0, Abilities{MaxClients: 48}},
	{550, 0, Abilities{OwnerOnly: true, MaxClients: 48}},
	{555, 0, Abilities{OwnerOnly: true, MaxClients: 48}},
	{580, 13000, Abilities{MultiUser: true, OwnerOnly: true, ServersOwnerOnly: true, MaxClients: 48}},
	{595, 13020, Abilities{MultiUser: true, OwnerOnly: true, ServersOwnerOnly: true, MaxClients: 48}},
	{615, 13040, Abilities{MultiUser: true, OwnerOnly: true, ServersOwnerOnly: true, MaxClients: 60}},
}

// and is what both have.
func (a Abilities) and(b Abilities) Abilities {
	return Abilities{
		MultiUser: a.MultiUser &&
			b.MultiUser,
		OwnerOnly:        a.OwnerOnly && b.OwnerOnly,
		ServersOwnerOnly: a.ServersOwnerOnly && b.ServersOwnerOnly,
		MaxClients:       min(a.MaxClients, b.MaxClients),
	}
}

// Abilities of the release. A branch between two known ones has what both have. Any other that is not known has what all
// have; then, and only then, unknown says why.
func (r Release) Abilities() (a Abilities, unknown string) {
	lower, upper := -1, -1
	for i, k := range known {
		number, at := r.Branch, k.branch
		if r.Branch == 0 {
			number, at = r.CUDA, k.cuda
		}
		if number == 0 || at == 0 && r.Branch == 0 {
			continue
		}
		if at <= number {
			lower = i
		}
		if at >= number && upper < 0 {
			upper = i
		}
	}
	if lower >= 0 && upper >= 0 {
		return known[lower].and(known[upper].Abilities), ""
	}
	a = known[0].Abilities
	for _, k := range known[1:] {
		a = a.and(k.Abilities)
	}
	if r.Early {
		return a, ""
	}
	return a, fmt.Sprintf("the abilities of MPS control program %s are not known: only what every version has is used", r)
}

// Argv is the command line that starts a control daemon in the foreground.
func (a Abilities) Argv(program string) []string {
	argv := []string{program, "-f"}
	if a.MultiUser {
		argv = append(argv, "-multiuser-server")
	}
	return slices.Clip(argv)
}
