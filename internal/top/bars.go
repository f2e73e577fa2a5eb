package top

import (
	"fmt"
	"strings"
)

// eighths are the parts of a character that a bar fills from the left, and those that a line of history has.
var (
	eighths = []rune(" ▏▎▍▌▋▊▉█")
	heights = []rune("▁▂▃▄▅▆▇█")
)

// barOf draws a part, 0 to 1, with a number of characters; an empty one if it is not known.
func barOf(part *float64, width int) string {
	if part == nil {
		return strings.Repeat("·", width)
	}
	n := int(min(max(*part, 0), 1)*float64(width*8) + 0.5)
	full := strings.Repeat("█", n/8)
	if n%8 > 0 {
		full += string(eighths[n%8])
	}
	return full + strings.Repeat("·", width-len([]rune(full)))
}

// history draws the last parts of a value, each 0 to 1; one that is not known is a gap.
func history(past []*float64, width int) string {
	past = past[max(0, len(past)-width):]
	out := []rune(strings.Repeat(" ", width-len(past)))
	for _, p := range past {
		if p == nil {
			out = append(out, ' ')
			continue
		}
		out = append(out, heights[min(int(min(max(*p, 0), 1)*float64(len(heights))), len(heights)-1)])
	}
	return string(out)
}

// percentOf is a part as text; - if it is not known.
func percentOf(part *float64) string {
	if part == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", *part*100)
}

// levelOf is the style of a part that is of a limit.
func levelOf(part *float64) Style {
	switch {
	case part == nil:
		return faint
	case *part >= 0.95:
		return warning
	}
	return good
}
