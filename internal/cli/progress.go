package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// progress is the lines at the bottom of a terminal that show the current step of each GPU. They are replaced as the work
// continues, and removed at the end. Other outputs have only a line for each step.
type progress struct {
	out   io.Writer
	names gpuNames
	lines int // printed now
	off   bool
}

func (a *app) progress(names gpuNames) *progress {
	return &progress{out: a.io.Out, names: names, off: !isTerminal(a.io.Out)}
}

// clear removes the lines.
func (p *progress) clear() {
	for ; p.lines > 0; p.lines-- {
		fmt.Fprint(p.out, "\x1b[1A\x1b[2K")
	}
}

// show writes a line for each GPU with a running step.
func (p *progress) show(o *api.Operation) {
	if p.off || o.Finished != nil {
		return
	}
	for _, line := range progressLines(o.Plan.Steps, p.names) {
		fmt.Fprintln(p.out, line)
		p.lines++
	}
}

// progressLines has, for each GPU with a running step and for the host, the step, its number, and the expected rest of the
// time from earlier measurements.
func progressLines(steps []api.PlanStep, names gpuNames) []string {
	var gpus, out []string
	for i := range steps {
		if !slices.Contains(gpus, steps[i].GPU) {
			gpus = append(gpus, steps[i].GPU)
		}
	}
	for _, id := range gpus {
		var now *api.PlanStep
		ended, all, left := 0, 0, 0.0
		for i := range steps {
			s := &steps[i]
			if s.GPU != id {
				continue
			}
			all++
			switch s.State {
			case "doing", "undoing":
				now, left = s, left+s.EstimatedSeconds
			case "", "pending":
				left += s.EstimatedSeconds
			default:
				ended++
			}
		}
		if now == nil {
			continue
		}
		line := fmt.Sprintf("  %s%s … step %d of %d", names.prefix(id), printable(now.Text), min(ended+1, all), all)
		if now.State == "undoing" {
			line = fmt.Sprintf("  %sundoing: %s", names.prefix(id), printable(now.Text))
		} else if left >= 0.5 {
			line += fmt.Sprintf(", about %.0f s left", left)
		}
		out = append(out, strings.TrimRight(line, " "))
	}
	return out
}
