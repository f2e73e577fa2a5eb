package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mig"
)

// gridRow is one line of a diagram of the memory slices of a GPU.
type gridRow struct {
	title  string
	blocks []block
}

type block struct {
	at    gpu.Placement
	label string
}

// presentRow shows the existing instances; ! marks those in use, as on the command line.
func presentRow(title string, p gpu.Profiles, present []mig.Present) gridRow {
	row := gridRow{title: title}
	for _, b := range present {
		row.blocks = append(row.blocks, block{b.Placement, label(mig.Record(p, []gpu.Instance{b.Instance})[0], b.InUse)})
	}
	return row
}

// planRow shows the instances after a plan.
func planRow(title string, present []mig.Present, r *mig.Result) gridRow {
	row := gridRow{title: title}
	for _, list := range [][]mig.Placed{r.Keep, r.Extra, r.Complete, r.Create} {
		for _, x := range list {
			used := slices.ContainsFunc(present, func(b mig.Present) bool {
				return b.InUse && b.Placement == x.Placement &&
					!slices.ContainsFunc(r.Destroy, func(d mig.Present) bool { return d.Placement == b.Placement })
			})
			row.blocks = append(row.blocks, block{x.Placement, label(x, used)})
		}
	}
	return row
}

func label(x mig.Placed, used bool) string {
	s := x.Name
	if len(x.Compute) != 0 {
		var parts []string
		for _, c := range x.Compute {
			parts = append(parts, fmt.Sprintf("%dc", c.Slices))
		}
		s += " " + strings.Join(parts, "+")
	}
	if used {
		s += "!"
	}
	return s
}

// diagram draws rows under the numbers of the memory slices. Every slice is as wide as the longest label needs.
func (a *app) diagram(width uint32, rows ...gridRow) {
	cell, head := uint32(4), 0
	for _, r := range rows {
		head = max(head, len(r.title))
		for _, b := range r.blocks {
			cell = max(cell, (uint32(len(b.label))+2+b.at.Size-1)/b.at.Size)
		}
	}
	var top strings.Builder
	for i := range width {
		top.WriteString(centred(fmt.Sprint(i), cell))
	}
	fmt.Fprintf(a.io.Out, "  %-*s  %s\n", head, "", strings.TrimRight(top.String(), " "))
	for _, r := range rows {
		slices.SortFunc(r.blocks, func(x, y block) int { return cmp.Compare(x.at.Start, y.at.Start) })
		var line strings.Builder
		next := uint32(0)
		for _, b := range append(r.blocks, block{at: gpu.Placement{Start: width}}) {
			for ; next < b.at.Start; next++ {
				line.WriteString(centred(".", cell))
			}
			if b.at.Size != 0 {
				fmt.Fprintf(&line, "[%-*s]", cell*b.at.Size-2, b.label)
				next = b.at.Start + b.at.Size
			}
		}
		fmt.Fprintf(a.io.Out, "  %-*s  %s\n", head, r.title, strings.TrimRight(line.String(), " "))
	}
}

// centred pads a short word on both sides.
func centred(s string, width uint32) string {
	left := (int(width) - len(s)) / 2
	return strings.Repeat(" ", left) + s + strings.Repeat(" ", int(width)-len(s)-left)
}
