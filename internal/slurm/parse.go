package slurm

import (
	"slices"
	"strconv"
	"strings"
)

// Known is one line that 'slurmd -G' prints: what slurmd made of gres.conf and slurm.conf.
type Known struct {
	Name  string // gpu or shard
	Type  string
	Count uint64
	Files []string
}

// Report is what 'slurmd -G' printed.
type Report struct {
	Known    []Known
	Problems []string // its errors, each once, without who said it
	Surplus  []string // what gres.conf has more of than slurm.conf, as in gpu:h100: slurmd ignores it
}

// ofProcessors begins an error about the processors of the node, which slurmd has wherever slurm.conf leaves some of their threads out.
const ofProcessors = "Node configuration differs from hardware"

// ParseReport reads what 'slurmd -G' printed, on both of its outputs. Lines that are not understood are ignored.
func ParseReport(text string) Report {
	var r Report
	had := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		line = said(line)
		if rest, ok := strings.CutPrefix(line, "Gres "); ok {
			r.known(fields(rest))
			continue
		}
		for _, kind := range []string{"error: ", "fatal: "} {
			if what, ok := strings.CutPrefix(line, kind); ok && !had[what] && !strings.HasPrefix(what, ofProcessors) {
				had[what] = true
				r.Problems = append(r.Problems, what)
			}
		}
		if _, rest, ok := strings.Cut(
			line,
			"A line in gres.conf for GRES ",
		); ok &&
			strings.Contains(rest, "more configured than expected") {
			what, _, _ := strings.Cut(rest, " ")
			// Of shards it says so of each line: their sum is compared where they are known.
			if !strings.HasPrefix(what, "shard") {
				r.Surplus = append(r.Surplus, what)
			}
		}
	}
	return r
}

// said is a line without who said it: slurmd, or slurmd-NODE where it was given the name of the node.
func said(line string) string {
	if who, rest, ok := strings.Cut(line, ": "); ok && (who == "slurmd" || strings.HasPrefix(who, "slurmd-")) {
		return rest
	}
	return line
}

func (r *Report) known(set map[string]string) {
	k := Known{Name: set["Name"], Type: none(set["Type"])}
	var err error
	if k.Count, err = strconv.ParseUint(set["Count"], 10, 64); err != nil {
		return
	}
	files, _, _ := strings.Cut(set["File"], " ") // 22.05 writes another (null), without a name.
	if files = none(files); files != "" {
		k.Files = strings.Split(files, ",")
	}
	r.Known = append(r.Known, k)
}

// fields are the words KEY=VALUE of a line. A word without = is part of the value before it, as in Reason.
func fields(line string) map[string]string {
	out, last := map[string]string{}, ""
	for _, w := range strings.Fields(line) {
		key, value, ok := strings.Cut(w, "=")
		switch {
		case ok && (last != "Reason" || !strings.HasPrefix(w, "[")):
			if _, had := out[key]; !had {
				out[key] = value
			}
			last = key
		case last != "":
			out[last] += " " + w
		}
	}
	return out
}

// none is a value; empty if Slurm writes that there is none.
func none(s string) string {
	if s == "(null)" || s == "N/A" {
		return ""
	}
	return s
}

// Node is what slurmctld has of a node.
type Node struct {
	Name    string
	Version string
	States  []string // as in IDLE, DRAIN, INVALID_REG
	Flags   []string // what the signs behind a state mean, as in NOT_RESPONDING
	Reason  string   // why it is drained or down
}

// signs are the states that Slurm writes as one character behind another one.
const signs = "*~#!%$@^-"

var signStates = map[rune]string{
	'*': notResponding,
	'~': "POWERED_DOWN",
	'#': "POWERING_UP",
	'!': "POWER_DOWN",
	'%': "POWERING_DOWN",
	'$': "MAINT",
	'@': "REBOOT_REQUESTED",
	'^': "REBOOT_ISSUED",
}

const notResponding = "NOT_RESPONDING"

// inService are the states of a node that runs jobs, or would if it were not drained.
var inService = []string{
	"IDLE",
	"ALLOCATED",
	"MIXED",
	"COMPLETING",
	"PLANNED",
	"RESERVED",
	"CLOUD",
	"DYNAMIC_NORM",
	"DRAIN",
	"DRAINING",
	"DRAINED",
	notResponding,
}

// OutOfService are the states for which the node is out of service, as DOWN, FAIL, MAINT, those of a reboot or of its power, and any that
// is not known: who resumes a node ends these as well. An INVALID_REG of a node that is drained is none: slurmctld drained it for that.
func (n *Node) OutOfService() []string {
	return slices.DeleteFunc(slices.Concat(n.States, n.Flags), func(s string) bool {
		return slices.Contains(inService, s) || s == "INVALID_REG" && n.Drained()
	})
}

// State is the state with what its signs mean.
func (n *Node) State() string { return strings.Join(slices.Concat(n.States, n.Flags), "+") }

// Drained reports whether the node takes no new jobs.
func (n *Node) Drained() bool {
	return slices.ContainsFunc(n.States, func(s string) bool { return strings.HasPrefix(s, "DRAIN") })
}

// Busy reports whether jobs run on the node, or end there. Those of a node that does not respond may, whatever slurmctld has of it.
func (n *Node) Busy() bool {
	return slices.ContainsFunc(slices.Concat(n.States, n.Flags), func(s string) bool {
		return s == "ALLOCATED" || s == "MIXED" || s == "COMPLETING" || s == "DRAINING" || s == notResponding
	})
}

// ParseNode reads what 'scontrol -o show node NAME' printed. ok is false if that is no node.
func ParseNode(text string) (n Node, ok bool) {
	for line := range strings.Lines(text) {
		set := fields(line)
		if set["NodeName"] == "" || set["State"] == "" {
			continue
		}
		n = Node{Name: set["NodeName"], Version: none(set["Version"]), Reason: reason(line)}
		for _, s := range strings.Split(set["State"], "+") {
			state := strings.TrimRight(s, signs)
			n.States = append(n.States, state)
			for _, sign := range s[len(state):] {
				if meant := signStates[sign]; meant != "" {
					n.Flags = append(n.Flags, meant)
				}
			}
		}
		return n, true
	}
	return Node{}, false
}

// reason is the text of Reason=, which has words, without who set it. It is the last of a line but for the comments of the site.
func reason(line string) string {
	_, rest, ok := strings.Cut(line, " Reason=")
	if !ok {
		return ""
	}
	if i := strings.LastIndex(rest, " ["); i >= 0 {
		rest = rest[:i]
	}
	return none(strings.TrimSpace(rest))
}
