package mpsd

import (
	"fmt"
	"strconv"
	"strings"
)

// leadingInt reads the number that a string begins with, as strtoll does; rest is what follows it.
func leadingInt(s string) (v int64, rest string, ok bool) {
	end := 0
	if end < len(s) && (s[end] == '-' || s[end] == '+') {
		end++
	}
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	v, err := strconv.ParseInt(s[:end], 10, 64)
	return v, s[end:], err == nil
}

// leadingFloat reads the number that a string begins with, as strtod does: "50%" is 50.
func leadingFloat(s string) (float64, bool) {
	end := len(s)
	for end > 0 {
		if v, err := strconv.ParseFloat(s[:end], 64); err == nil {
			return v, true
		}
		end--
	}
	return 0, false
}

// parseLimit is the driver's reading of a memory limit, in bytes: G is GiB and everything else is MiB. So 1024K is a GiB,
// 1.5G and 1T are one MiB, a number of bytes is no limit at all, and a negative one neither.
func parseLimit(s string) uint64 {
	v, rest, ok := leadingInt(s)
	if !ok {
		return 0
	}
	if strings.HasPrefix(rest, "G") || strings.HasPrefix(rest, "g") {
		return uint64(v) << 30
	}
	return uint64(v) << 20
}

// formatLimit is how the driver prints a limit: whole G, the rest cut off, or whole M below one. Nothing for no limit.
func formatLimit(bytes uint64) string {
	switch {
	case bytes == 0:
		return ""
	case bytes >= 1<<30:
		return fmt.Sprintf("%dG", bytes>>30)
	default:
		return fmt.Sprintf("%dM", bytes>>20)
	}
}

// limits is the memory limit of each device in bytes, by ordinal or UUID as it was named.
type limits map[string]uint64

// device tells whether a device argument is one that limits are kept for. UUIDs of GPUs that do not exist are.
func device(s string) bool {
	if strings.HasPrefix(s, "GPU-") || strings.HasPrefix(s, "MIG-") {
		return true
	}
	n, rest, ok := leadingInt(s)
	return ok && rest == "" && n >= 0 && n < 64
}

// of is the limit of the device that a client named, where the visible devices are these.
func (l limits) of(gpu string, visible []string) uint64 {
	if v, ok := l[gpu]; ok {
		return v
	}
	for i, u := range visible {
		ordinal := strconv.Itoa(i)
		if u == gpu {
			return l[ordinal]
		}
		if ordinal == gpu {
			return l[u]
		}
	}
	return 0
}

// environmentLimits reads CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, "0=1G,GPU-…=512M".
func environmentLimits(s string) limits {
	l := limits{}
	for part := range strings.SplitSeq(s, ",") {
		if dev, v, ok := strings.Cut(part, "="); ok && device(dev) {
			l[dev] = parseLimit(v)
		}
	}
	return l
}
