package mpsd

import (
	"fmt"
	"strconv"
	"strings"
)

// leadingInt parses the number at the start of a string, as strtoll does; rest is the remaining string.
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

// leadingFloat parses the number at the start of a string, as strtod does: "50%" is 50, and 0x10 is 16.
func leadingFloat(s string) (float64, bool) {
	for end := len(s); end > 0; end-- {
		text := s[:end]
		if lower := strings.ToLower(strings.TrimLeft(text, "+-")); strings.HasPrefix(lower, "0x") && !strings.Contains(lower, "p") {
			text += "p0" // Go wants an exponent
		}
		if v, err := strconv.ParseFloat(text, 64); err == nil && !strings.Contains(text, "_") {
			return v, true
		}
	}
	return 0, false
}

// parseLimit parses a memory limit as the driver does and returns bytes: G is GiB and all other units are MiB. So 1024K
// is one GiB, and 1.5G and 1T are one MiB. A number in bytes and a negative number give a limit so large that it has no
// effect.
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

// formatLimit formats a limit as the driver does: in G, rounded down, or in M below one G. Empty without a limit.
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

// limits are the memory limits in bytes by device, which is an ordinal or UUID as given.
type limits map[string]uint64

// device returns the key of a device argument, empty for an invalid one. UUIDs of GPUs that do not exist are valid.
func (b branch) device(s string) string {
	if strings.HasPrefix(s, "GPU-") || strings.HasPrefix(s, "MIG-") {
		if b.takesUUIDs() {
			return s
		}
		return ""
	}
	last := int64(31)
	if b.takesUUIDs() {
		last = 63
	}
	n, rest, ok := leadingInt(s)
	if !ok || rest != "" || n < 0 || n > last {
		return ""
	}
	return strconv.FormatInt(n, 10) // device 00 is device 0
}

// limit reads a device and its limit in bytes: 0 removes the limit. why is for the log. An empty device and an empty why change
// nothing.
func (b branch) limit(words []string) (dev string, bytes uint64, why string) {
	if b.keepsLimits() {
		if len(words) < 2 {
			return "", 0, ""
		}
		if dev = b.device(words[0]); dev == "" {
			return "", 0, "Invalid device identifier format"
		}
		return dev, parseLimit(words[1]), ""
	}
	// Two numbers with an optional unit, 0 where the text has none: "GPU-abc 2G" removes the limit of device 0, and "1=2G" that
	// of device 1.
	n, rest, ok := leadingInt(strings.Join(words, " "))
	if !ok {
		return "0", 0, ""
	}
	if dev = b.device(strconv.FormatInt(n, 10)); dev == "" {
		return "", 0, "Invalid device ordinal!"
	}
	return dev, parseLimit(strings.TrimLeft(rest, " ")), ""
}

// of returns the limit of the client's device. visible are the visible devices.
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

// environmentLimits parses CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, "0=1G,GPU-…=512M".
func (b branch) environmentLimits(s string) limits {
	l := limits{}
	for part := range strings.SplitSeq(s, ",") {
		if dev, v, ok := strings.Cut(part, "="); ok && b.device(dev) != "" {
			l[b.device(dev)] = parseLimit(v)
		}
	}
	return l
}
