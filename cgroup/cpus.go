package cgroup

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPU is the largest valid CPU number: the kernel's limit on x86 is 8192 CPUs.
const maxCPU = 8191

// ParseCPUs reads a list like "0-7,16". The result is sorted, each CPU once; empty for the empty list.
func ParseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			if strings.TrimSpace(list) == "" {
				return nil, nil
			}
			return nil, fmt.Errorf("cannot read CPU list %q: an entry is empty", list)
		}
		first, last, isRange := strings.Cut(part, "-")
		a, err := cpuNumber(first)
		if err != nil {
			return nil, fmt.Errorf("cannot read CPU list %q: %w", list, err)
		}
		b := a
		if isRange {
			if b, err = cpuNumber(last); err != nil {
				return nil, fmt.Errorf("cannot read CPU list %q: %w", list, err)
			}
		}
		if b < a {
			return nil, fmt.Errorf("cannot read CPU list %q: %q: the first CPU is larger than the last", list, part)
		}
		for n := a; n <= b; n++ {
			cpus = append(cpus, n)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// FormatCPUs writes sorted CPUs as the kernel does: "0-7,16".
func FormatCPUs(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(cpus[j]))
		}
		i = j + 1
	}
	return b.String()
}

func cpuNumber(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n > maxCPU {
		return 0, fmt.Errorf("%q is not a CPU number", s)
	}
	return int(n), nil
}
