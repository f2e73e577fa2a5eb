package isolation

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
)

// Explain says what of the slice is not enforced here, and why, one sentence each; none when all is.
func Explain(info cgroup.Info, s cgroup.Slice) []string {
	var out []string
	for _, l := range limitTexts(s.Limits) {
		if l.value != "" && !slices.Contains(info.Limits, l.limit) {
			out = append(out, fmt.Sprintf("%s %s is not enforced: %s", l.name, l.value, why(info, "the "+controller(l.limit)+" controller is not at hand")))
		}
	}
	if s.Closed && !info.Devices {
		lack := info.NoDevices
		if lack == "" {
			lack = "no device program can be attached"
		}
		out = append(out, "device rules are not enforced, so every GPU can be opened: "+why(info, lack))
	}
	return out
}

// controller is the kernel's word for what a limit needs.
func controller(limit string) string {
	if limit == "tasks" {
		return "pids"
	}
	return limit
}

// why says what the adapter lacks.
func why(info cgroup.Info, lack string) string {
	s := lack
	if !info.Slices {
		s = "there are no cgroups to use"
	}
	if info.Detail != "" {
		s += " (" + info.Detail + ")"
	}
	return s
}
