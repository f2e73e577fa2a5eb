package external

import (
	"slices"
	"strconv"
	"strings"
)

// Gres are the GPUs in a node's gres.conf.
type Gres struct {
	Auto     bool     // AutoDetect: every GPU that the driver shows
	Minors   []int    // of the listed device nodes, ascending, each once
	Settings []string // the settings, as they are written
}

// Any reports whether Slurm schedules any GPU.
func (g Gres) Any() bool { return g.Auto || len(g.Minors) > 0 }

// parseGres reads the text of a gres.conf for one node, named as in NodeName=. includes are the files that it
// includes.
func parseGres(text, node string) (g Gres, includes []string) {
	for _, line := range lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 2 && strings.EqualFold(fields[0], "Include") {
			includes = append(includes, fields[1])
			continue
		}
		set := map[string]string{}
		for _, w := range fields {
			if key, value, ok := strings.Cut(w, "="); ok {
				set[strings.ToLower(key)] = strings.Trim(value, `"`)
			}
		}
		if nodes, ok := set["nodename"]; ok && !containsHost(nodes, node) {
			continue
		}
		g.read(set)
	}
	slices.Sort(g.Minors)
	g.Minors = slices.Compact(g.Minors)
	return g, includes
}

// read reads one line. A line about other resources than GPUs, such as name=nic, is ignored; AutoDetect has a line of its own.
func (g *Gres) read(set map[string]string) {
	if name, ok := set["name"]; ok && !strings.EqualFold(name, "gpu") && !strings.EqualFold(name, "mps") &&
		!strings.EqualFold(name, "shard") {
		return
	}
	if auto := set["autodetect"]; strings.EqualFold(auto, "nvml") || strings.EqualFold(auto, "nvidia") {
		g.Auto = true
		g.Settings = append(g.Settings, "AutoDetect="+auto)
	}
	for _, key := range []string{"file", "multiplefiles"} {
		found := false
		for _, file := range expandHosts(set[key]) {
			if minor, err := strconv.Atoi(strings.TrimPrefix(file, "/dev/nvidia")); err == nil && minor >= 0 &&
				strings.HasPrefix(file, "/dev/nvidia") {
				g.Minors, found = append(g.Minors, minor), true
			}
		}
		if found {
			g.Settings = append(g.Settings, map[string]string{"file": "File=", "multiplefiles": "MultipleFiles="}[key]+set[key])
		}
	}
}

// lines are the lines without comments, those that end in a backslash joined with the next.
func lines(text string) []string {
	var out []string
	joined := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		line, _, _ = strings.Cut(line, "#")
		if rest, more := strings.CutSuffix(strings.TrimRight(line, " \t"), `\`); more {
			joined += rest + " "
			continue
		}
		if line = strings.TrimSpace(joined + line); line != "" {
			out = append(out, line)
		}
		joined = ""
	}
	if joined = strings.TrimSpace(joined); joined != "" {
		out = append(out, joined)
	}
	return out
}

// containsHost reports whether a host list, as in "node[01-10],login", contains a host. "ALL" contains every host.
func containsHost(list, host string) bool {
	if strings.EqualFold(list, "ALL") {
		return true
	}
	return slices.Contains(expandHosts(list), host)
}

// maxNames bounds an expansion.
const maxNames = 1 << 16

// expandHosts expands a list with brackets: "/dev/nvidia[0-1,3]" is three names. An item that cannot be read is ignored.
func expandHosts(list string) []string {
	var out []string
	for _, item := range splitOutside(list) {
		out = append(out, expandOne(item)...)
		if len(out) > maxNames {
			return out[:maxNames]
		}
	}
	return out
}

// splitOutside splits at the commas outside of brackets.
func splitOutside(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range []byte(s) {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, s[from:i])
				from = i + 1
			}
		}
	}
	return slices.DeleteFunc(append(out, s[from:]), func(s string) bool { return s == "" })
}

func expandOne(s string) []string {
	head, rest, ok := strings.Cut(s, "[")
	if !ok {
		return []string{s}
	}
	inside, tail, ok := strings.Cut(rest, "]")
	if !ok {
		return nil
	}
	tails := expandOne(tail)
	var out []string
	for _, part := range strings.Split(inside, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || a < 0 || b < a || (b-a+1)*max(1, len(tails)) > maxNames {
			return nil
		}
		for n := a; n <= b; n++ {
			digits := strconv.Itoa(n)
			// node[01-10] has two digits throughout.
			digits = strings.Repeat("0", max(0, len(first)-len(digits))) + digits
			for _, t := range tails {
				out = append(out, head+digits+t)
			}
		}
	}
	return out
}
