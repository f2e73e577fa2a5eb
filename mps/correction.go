package mps

import (
	"fmt"
	"strings"
)

// correction describes what a start step changes on a control daemon that runs, and which clients each change reaches.
func (o Observed) correction(set Settings) string {
	was := *o.State.Settings
	var parts []string
	if was.Threads != set.Threads {
		parts = append(parts, fmt.Sprintf("threads of MPS clients %s → %s: new clients", threadsText(was), threadsText(set)))
	}
	if was.Memory != set.Memory {
		reach := "new clients"
		if n := len(o.State.Clients); n > 0 {
			reach += fmt.Sprintf("; all at the latest when the %d that run have ended, because a server may refuse it until then", n)
		}
		parts = append(parts, fmt.Sprintf("memory limit of MPS clients %s → %s: %s", memoryText(was), memoryText(set), reach))
	}
	switch {
	case o.otherMode(set) || set.DenyBypass && !was.DenyBypass:
		parts = append(parts, "compute mode exclusive-process: contexts that are opened from now on")
	case was.DenyBypass && !set.DenyBypass:
		parts = append(parts, "compute mode from before MPS: contexts that are opened from now on")
	}
	if len(parts) == 0 {
		return "set the MPS limits again"
	}
	return "set " + strings.Join(parts, ", ")
}

func threadsText(s Settings) string { return percentText(s.percentage()) + "%" }

func memoryText(s Settings) string {
	if s.Memory == 0 {
		return "none"
	}
	return fmt.Sprintf("%d MiB", s.Memory/mebibyte)
}
