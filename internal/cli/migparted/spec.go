package migparted

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/mig"
)

// GPUs is one entry under gpus: of a spec.
type GPUs struct {
	Index    []int       // the selector: by index,
	PCIID    []api.PCIID // by PCI id,
	UUID     string      // by UUID, or all when none is set
	Mode     string
	Layout   []string // of mode mig; empty: dynamic
	Optional bool     // it may select no GPU
	Comment  string
}

// Spec is a converted label: a part of a spec, and what a spec cannot express.
type Spec struct {
	GPUs         []GPUs
	NotExpressed []string
}

func (s *Spec) notExpressed(e *Entry, format string, args ...any) {
	s.NotExpressed = append(s.NotExpressed, fmt.Sprintf("line %d: ", e.Line)+fmt.Sprintf(format, args...))
}

// Spec converts a label. In the file the last entry has precedence, in a spec the most specific selector. The entries are
// changed so that the result is the same; where that is not possible, the difference is listed.
//
// migOff is the mode of GPUs whose MIG mode is off in the file: a spec turns MIG off only where it shares the GPU in another
// way, which the file does not say. In mode external they are only observed, and no access to them changes.
func (l *Label) Spec(migOff string) Spec {
	var out Spec
	for i := range l.Entries {
		e := &l.Entries[i]
		g := GPUs{Mode: migOff}
		switch {
		case !e.Enabled && migOff == api.ModeExternal:
			g.Comment = "only observed: exclusive, timeslice or mps share it and turn MIG off"
		case !e.Enabled:
			g.Comment = "MIG off"
		case len(e.layout()) == 0:
			g.Mode = api.ModeMIG
			out.notExpressed(
				e, "MIG on without instances is not a layout: it is converted to dynamic, where instances are created for leases",
			)
		default:
			g.Mode, g.Layout = api.ModeMIG, e.layout()
		}
		if out.selectGPUs(e, &g) {
			out.add(g)
			if g.Mode == api.ModeExternal {
				out.notExpressed(
					e,
					"a spec turns MIG off only on GPUs that it shares in another way: these are only observed; --mig-off exclusive, timeslice or mps also turns MIG off",
				)
			}
		}
	}
	return out
}

// selectGPUs sets the selector of an entry. It reports false if there is none.
func (s *Spec) selectGPUs(e *Entry, g *GPUs) bool {
	switch {
	case !e.All:
		if len(e.Devices) == 0 {
			s.notExpressed(e, "it selects no GPU")
			return false
		}
		if len(e.Filter) > 0 {
			s.notExpressed(
				e, "a spec selects GPUs by number or by board, not by both: the device filter %s is not checked",
				strings.Join(e.Filter, ", "),
			)
		}
		g.Index = slices.Clone(e.Devices)
		slices.Sort(g.Index)
		g.Index = slices.Compact(g.Index)
	case len(e.Filter) == 0:
		for i := range s.GPUs {
			s.notExpressed(e, "this later entry is for all GPUs, so the earlier entry for %s has no effect", s.GPUs[i].selects())
		}
		s.GPUs = nil
	default:
		g.Optional = true // As in the file, where a filter that no GPU passes is no error.
		for _, text := range e.Filter {
			id, ok := deviceID(text)
			switch {
			case !ok:
				s.notExpressed(e, "invalid PCI id %q: it selects no GPU", text)
			case !slices.Contains(g.PCIID, id):
				g.PCIID = append(g.PCIID, id)
			}
		}
		if len(g.PCIID) == 0 {
			return false
		}
		if slices.ContainsFunc(s.GPUs, func(b GPUs) bool { return len(b.Index) > 0 }) {
			s.notExpressed(
				e,
				"in the file this later entry has precedence over entries with GPU numbers; in a spec the number has precedence over the board",
			)
		}
	}
	return true
}

// deviceID reads a PCI id as the partition editor does, in any base that its prefix says, and without a prefix as hexadecimal.
func deviceID(text string) (api.PCIID, bool) {
	text = strings.ToLower(text)
	id, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		id, err = strconv.ParseUint(text, 16, 32)
	}
	return api.PCIID{Device: uint32(id)}, err == nil && id>>16 != 0 && id&0xffff != 0
}

// add appends an entry and removes its GPUs from earlier entries with the same kind of selector.
func (s *Spec) add(g GPUs) {
	s.GPUs = slices.DeleteFunc(s.GPUs, func(b GPUs) bool {
		return len(b.Index) > 0 && len(without(b.Index, g.Index)) == 0 || len(b.PCIID) > 0 && len(without(b.PCIID, g.PCIID)) == 0
	})
	for i := range s.GPUs {
		s.GPUs[i].Index, s.GPUs[i].PCIID = without(s.GPUs[i].Index, g.Index), without(s.GPUs[i].PCIID, g.PCIID)
	}
	s.GPUs = append(s.GPUs, g)
}

func without[T comparable](list, others []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return slices.Contains(others, v) })
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

// selects describes the selector of an entry.
func (g *GPUs) selects() string {
	switch {
	case len(g.Index) > 0:
		return strings.ReplaceAll(strings.Trim(fmt.Sprint(g.Index), "[]"), " ", ", ")
	case len(g.PCIID) > 0:
		return g.Boards()
	case g.UUID != "":
		return g.UUID
	}
	return "all"
}

// Boards names the boards that the PCI ids select: by the id where no name is known.
func (g *GPUs) Boards() string {
	var out []string
	for _, id := range g.PCIID {
		name := cmp.Or(strings.TrimPrefix(board.NameOf(id.Device), "NVIDIA "), id.String())
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}

// plain returns a text that stays in its line: in a comment, a line break of any kind would begin a part of the spec.
func plain(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// YAML formats a spec. from is its origin, for a comment.
func (s Spec) YAML(from string) string {
	var b strings.Builder
	b.WriteString("# " + plain(from) + "\n")
	for _, n := range s.NotExpressed {
		b.WriteString("# Not expressed: " + plain(n) + "\n")
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
		case len(g.PCIID) > 0:
			var ids []string
			for _, id := range g.PCIID {
				ids = append(ids, strconv.Quote(id.String()))
			}
			selector = "{pci_id: [" + strings.Join(ids, ", ") + "]} # " + plain(g.Boards())
		case g.UUID != "":
			selector = "{uuid: " + g.UUID + "}"
		}
		fmt.Fprintf(&b, "  - select: %s\n    mode: %s", selector, g.Mode)
		if g.Comment != "" {
			b.WriteString(" # " + plain(g.Comment))
		}
		b.WriteString("\n")
		switch {
		case len(g.Layout) > 0:
			names := g.Layout
			fmt.Fprintf(&b, "    mig: {layout: [%s]}\n", strings.Join(names, ", "))
		case g.Mode == api.ModeMIG:
			b.WriteString("    mig: {dynamic: true}\n")
		}
		if g.Optional {
			b.WriteString("    optional: true\n")
		}
	}
	return b.String()
}
