package cli

import "strings"

// unified shows what differs between two texts, with three lines around. The texts are specs: short.
func unified(before, after string) string {
	a, b := lines(before), lines(after)
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []string
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			out = append(out, "- "+a[i])
			i++
		default:
			out = append(out, "+ "+b[j])
			j++
		}
	}
	return around(out, 3)
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// around keeps changed lines and n neighbours; gaps become "...".
func around(all []string, n int) string {
	var b strings.Builder
	last := -1
	for i := range all {
		near := false
		for k := max(0, i-n); k <= min(len(all)-1, i+n); k++ {
			near = near || all[k][0] != ' '
		}
		if !near {
			continue
		}
		if last >= 0 && i > last+1 {
			b.WriteString("  ...\n")
		}
		b.WriteString(all[i] + "\n")
		last = i
	}
	return b.String()
}
