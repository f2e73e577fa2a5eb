package migparted

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/mig"
)

// GPUs is one entry under gpus: of a spec.
type GPUs struct {
	Index   []int    // the selector: by index,
	Model   string   // by the driver's name of the model,
	UUID    string   // by UUID, or all when none is set
	Mode    string   // mig or exclusive
	Layout  []string // of mode mig; empty: dynamic
	Comment string
}

// Spec is a converted label: a part of a spec, and what a spec cannot express.
type Spec struct {
	GPUs         []GPUs
	NotExpressed []string
}

// Spec converts a label. In the file the last entry has precedence, in a spec the most specific selector. The entries are
// changed so that the result is the same; where that is not possible, the difference is listed.
func (l *Label) Spec() (Spec, error) {
	var out Spec
	notExpressed := func(e *Entry, format string, args ...any) {
		out.NotExpressed = append(out.NotExpressed, fmt.Sprintf("line %d: ", e.Line)+fmt.Sprintf(format, args...))
	}
	for i := range l.Entries {
		e := &l.Entries[i]
		g := GPUs{Mode: "exclusive"}
		switch {
		case !e.Enabled:
			g.Comment = "MIG off; set timeslice or mps to share the GPU"
		case len(e.layout()) == 0:
			g.Mode = "mig"
			notExpressed(e, "MIG on without instances is not a layout: it is converted to dynamic, where instances are created for leases")
		default:
			g.Mode, g.Layout = "mig", e.layout()
		}
		switch {
		case !e.All:
			if len(e.Devices) == 0 {
				notExpressed(e, "it selects no GPU")
				continue
			}
			if len(e.Filter) > 0 {
				notExpressed(e, "a spec selects GPUs by number or by board, not by both: the device filter %s is not checked", strings.Join(e.Filter, ", "))
			}
			g.Index = slices.Clone(e.Devices)
			slices.Sort(g.Index)
			g.Index = slices.Compact(g.Index)
			out.add(g)
		case len(e.Filter) == 0:
			for _, before := range out.GPUs {
				notExpressed(e, "this later entry is for all GPUs, so the earlier entry for %s has no effect", before.selects())
			}
			out.GPUs = nil
			out.add(g)
		default:
			known, unknown, err := boards(e.Filter)
			if err != nil {
				return out, err
			}
			if len(unknown) > 0 {
				notExpressed(e, "unknown PCI id %s: select its GPUs by model, as shown by 'nvidia-smi -L'", strings.Join(unknown, ", "))
			}
			for _, model := range known {
				if slices.ContainsFunc(out.GPUs, func(b GPUs) bool { return len(b.Index) > 0 }) {
					notExpressed(e, "in the file this later entry has precedence over entries with GPU numbers; in a spec the number has precedence over the model")
				}
				g.Model = model
				out.add(g)
			}
		}
	}
	return out, nil
}

// add appends an entry and removes its GPUs from earlier entries with the same kind of selector.
func (s *Spec) add(g GPUs) {
	s.GPUs = slices.DeleteFunc(s.GPUs, func(b GPUs) bool { return g.Model != "" && b.Model == g.Model })
	for i := range s.GPUs {
		if b := &s.GPUs[i]; len(b.Index) > 0 {
			b.Index = slices.DeleteFunc(slices.Clone(b.Index), func(n int) bool { return slices.Contains(g.Index, n) })
			if len(b.Index) == 0 {
				b.Mode = "" // It selects no GPU any more.
			}
		}
	}
	s.GPUs = append(slices.DeleteFunc(s.GPUs, func(b GPUs) bool { return b.Mode == "" }), g)
}

// layout lists the profiles, the largest first, each as often as its count.
func (e *Entry) layout() []string {
	counts := slices.Clone(e.Counts)
	slices.SortStableFunc(counts, func(a, b Count) int {
		x, _ := mig.ParseProfile(a.Profile) // Read has parsed it.
		y, _ := mig.ParseProfile(b.Profile)
		return cmp.Or(cmp.Compare(y.Slices, x.Slices), cmp.Compare(y.GB, x.GB))
	})
	var out []string
	for _, c := range counts {
		out = append(out, slices.Repeat([]string{c.Profile}, c.N)...)
	}
	return out
}

// boards returns the driver's names of the boards with these PCI ids, in their order.
func boards(filter []string) (known, unknown []string, err error) {
	all, err := board.All()
	if err != nil {
		return nil, nil, err
	}
	for _, text := range filter {
		id, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(text), "0x"), 16, 32)
		i := slices.IndexFunc(all, func(b *board.Board) bool { return uint64(b.PCIDevice) == id })
		if err != nil || i < 0 {
			unknown = append(unknown, text)
			continue
		}
		known = append(known, all[i].Name)
	}
	return known, unknown, nil
}

// selects describes the selector of an entry.
func (g *GPUs) selects() string {
	switch {
	case len(g.Index) > 0:
		return strings.ReplaceAll(strings.Trim(fmt.Sprint(g.Index), "[]"), " ", ", ")
	case g.Model != "":
		return g.Model
	case g.UUID != "":
		return g.UUID
	}
	return "all"
}

// YAML formats a spec. from is its origin, for a comment.
func (s Spec) YAML(from string) string {
	var b strings.Builder
	b.WriteString("# " + from + "\n")
	for _, n := range s.NotExpressed {
		b.WriteString("# Not expressed: " + n + "\n")
	}
	b.WriteString("version: v1\n")
	if len(s.GPUs) == 0 {
		b.WriteString("gpus: []\n")
		return b.String()
	}
	b.WriteString("gpus:\n")
	for i := range s.GPUs {
		g := &s.GPUs[i]
		selector := "{all: true}"
		switch {
		case len(g.Index) > 0:
			selector = "{index: [" + g.selects() + "]}"
		case g.Model != "":
			selector = "{model: " + strconv.Quote(g.Model) + "}"
		case g.UUID != "":
			selector = "{uuid: " + g.UUID + "}"
		}
		fmt.Fprintf(&b, "  - select: %s\n    mode: %s", selector, g.Mode)
		if g.Comment != "" {
			b.WriteString(" # " + g.Comment)
		}
		b.WriteString("\n")
		switch {
		case len(g.Layout) > 0:
			names := g.Layout
			fmt.Fprintf(&b, "    mig: {layout: [%s]}\n", strings.Join(names, ", "))
		case g.Mode == "mig":
			b.WriteString("    mig: {dynamic: true}\n")
		}
	}
	return b.String()
}
