package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Resolved has the GPUs that the selectors of a spec select on one node. It is decided once, at apply, and stored with the
// spec: after a card is removed an index may name another GPU, a UUID does not.
type Resolved struct {
	// GPUs gives for each GPU that an entry names the place of that entry in the spec. Any other GPU is unmanaged.
	GPUs map[gpu.UUID]int `json:"gpus"`
	// Grants gives for each grant, by GrantKey, the GPUs that it may use, in the driver's order.
	Grants map[string][]gpu.UUID `json:"grants"`
}

// GrantKey names a grant among all of the node: "tenant/grant".
func GrantKey(tenant, grant string) string { return tenant + "/" + grant }

// Resolve finds out which GPUs the selectors mean. The more exact selector wins: a UUID or a PCI address before an
// index, before a PCI id (with a subsystem, then without one), before a model, before all; two of the same kind for one GPU are a tie,
// which is an error.
//
// Warnings do not prevent an apply. The error is an *api.Error of kind invalid. Findings have a
// path but no position: Locate gives them one.
func Resolve(s *api.Spec, gpus []gpu.Identity) (Resolved, []api.FieldError, error) {
	gpus = slices.Clone(gpus)
	slices.SortStableFunc(gpus, func(a, b gpu.Identity) int { return a.Index - b.Index })
	r := &resolver{
		spec: s, gpus: gpus,
		out: Resolved{GPUs: map[gpu.UUID]int{}, Grants: map[string][]gpu.UUID{}},
	}
	r.entries()
	if len(r.errors) == 0 { // a grant's findings would only repeat those of the entries
		r.grants()
	}
	if len(r.errors) > 0 {
		message := r.errors[0].Error()
		if n := len(r.errors) - 1; n > 0 {
			message += fmt.Sprintf(" (and %d more)", n)
		}
		return Resolved{}, r.warnings, &api.Error{
			Kind: api.KindInvalid, Message: message, Fields: r.errors,
			Hint: "see what is there with: gpushare gpu list",
		}
	}
	return r.out, r.warnings, nil
}

type resolver struct {
	spec     *api.Spec
	gpus     []gpu.Identity
	out      Resolved
	errors   []api.FieldError
	warnings []api.FieldError
}

func (r *resolver) fail(path, format string, args ...any) {
	r.errors = append(r.errors, api.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (r *resolver) warn(path, format string, args ...any) {
	r.warnings = append(r.warnings, api.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// The ranks of selectors: the higher is the more exact.
const (
	rankAll = iota + 1
	rankModel
	rankPCIID
	rankSubsystem
	rankIndex
	rankExact
)

// match is one value of a selector with the GPUs that it means.
type match struct {
	path, text string
	rank       int
	gpus       []int // places in resolver.gpus
}

// matches reads a selector against the GPUs, one match for each of its values.
func (r *resolver) matches(s *api.Selector, at string) []match {
	var found []match
	one := func(path, text string, rank int, is func(gpu.Identity) bool) {
		m := match{path: path, text: text, rank: rank}
		for i, g := range r.gpus {
			if is(g) {
				m.gpus = append(m.gpus, i)
			}
		}
		found = append(found, m)
	}
	for i, u := range s.UUID {
		one(item(at+".uuid", i, len(s.UUID)), u, rankExact, func(g gpu.Identity) bool { return strings.EqualFold(string(g.UUID), u) })
	}
	for i, a := range s.PCI {
		canonical, _ := api.CanonicalPCI(a)
		one(item(at+".pci", i, len(s.PCI)), a, rankExact, func(g gpu.Identity) bool {
			seen, ok := api.CanonicalPCI(g.PCI)
			return ok && seen == canonical
		})
	}
	for i, n := range s.Index {
		one(item(at+".index", i, len(s.Index)), fmt.Sprintf("index %d", n), rankIndex, func(g gpu.Identity) bool { return g.Index == n })
	}
	for i, text := range s.PCIID {
		id, _ := api.ParsePCIID(text)
		rank := rankPCIID
		if id.Subsystem != 0 {
			rank = rankSubsystem
		}
		one(item(at+".pci_id", i, len(s.PCIID)), "PCI id "+text, rank, func(g gpu.Identity) bool {
			return g.PCIDevice != 0 && g.PCIDevice == id.Device && (id.Subsystem == 0 || g.PCISubsystem == id.Subsystem)
		})
	}
	if s.Model != "" {
		// A model may have a slash in its name, and no part of it is a directory.
		flat := strings.NewReplacer("/", "\x00")
		pattern := flat.Replace(s.Model)
		one(at+".model", fmt.Sprintf("model %q", s.Model), rankModel, func(g gpu.Identity) bool {
			ok, _ := path.Match(pattern, flat.Replace(g.Model))
			return ok
		})
	}
	if s.All {
		one(at+".all", "all", rankAll, func(gpu.Identity) bool { return true })
	}
	return found
}

func item(at string, i, n int) string {
	if n == 1 {
		return at
	}
	return fmt.Sprintf("%s[%d]", at, i)
}

// entries decides which entry each GPU belongs to.
func (r *resolver) entries() {
	type claim struct {
		entry int
		match match
	}
	claims := make([]claim, len(r.gpus))
	for e := range r.spec.GPUs {
		entry := &r.spec.GPUs[e]
		for _, m := range r.matches(&entry.Select, fmt.Sprintf("gpus[%d].select", e)) {
			if len(m.gpus) == 0 && !entry.Optional {
				switch {
				case m.rank >= rankIndex:
					r.fail(m.path, "no GPU here has %s (%s): correct it, or write optional: true", m.text, r.present())
				case m.rank == rankAll:
					r.warn(m.path, "there are no GPUs here: write optional: true if that is meant")
				default:
					r.warn(m.path, "no GPU here has %s (%s): write optional: true if that is meant", m.text, r.present())
				}
			}
			for _, g := range m.gpus {
				held := &claims[g]
				switch {
				case m.rank > held.match.rank:
					*held = claim{e, m}
				case m.rank == held.match.rank && held.entry != e:
					r.fail(m.path, "GPU %s is selected as exactly by gpus[%d] (%s) as by gpus[%d] (%s): name it in one of them only",
						name(r.gpus[g]), held.entry, held.match.text, e, m.text)
				}
			}
		}
	}
	for g, c := range claims {
		if c.match.rank == 0 {
			continue
		}
		id, entry := r.gpus[g], r.spec.GPUs[c.entry]
		if id.Display && !entry.Graphics && entry.Mode != api.ModeExternal {
			r.fail(c.match.path, "GPU %s drives a display: write graphics: true in gpus[%d] to share it anyway", name(id), c.entry)
		}
		if id.UUID != "" {
			r.out.GPUs[id.UUID] = c.entry
		}
	}
}

// grants decides which GPUs each grant may use.
func (r *resolver) grants() {
	for t := range r.spec.Tenants {
		tenant := &r.spec.Tenants[t]
		for i := range tenant.Grants {
			grant := &tenant.Grants[i]
			at := fmt.Sprintf("tenants[%d].grants[%d]", t, i)
			mistakes := len(r.errors)
			may := r.usable(grant, at)
			r.out.Grants[GrantKey(tenant.Name, grant.Name)] = may
			switch kind := grant.Mode(); {
			case len(r.errors) > mistakes: // said already, and more exactly
			case len(may) == 0:
				r.warn(at, "no GPU here is in mode %s for this grant: no user can use it", kind)
			case grant.Exclusive > len(may):
				r.warn(
					at+".exclusive", "only %d GPUs are in mode exclusive for this grant: a lease of %d never fits", len(may),
					grant.Exclusive,
				)
			}
		}
	}
}

func (r *resolver) usable(grant *api.GrantSpec, at string) []gpu.UUID {
	kind := grant.Mode()
	selected := make([]bool, len(r.gpus))
	if grant.GPUs == nil {
		for i := range selected {
			selected[i] = true
		}
	} else {
		for _, m := range r.matches(grant.GPUs, at+".gpus") {
			switch {
			case len(m.gpus) == 0 && m.rank >= rankIndex && !r.optional(grant.GPUs):
				r.fail(m.path, "no GPU here has %s (%s): correct it", m.text, r.present())
			case len(m.gpus) == 0:
				r.warn(m.path, "no GPU here has %s (%s)", m.text, r.present())
			}
			for _, g := range m.gpus {
				selected[g] = true
				if mode := r.mode(g); mode != kind && m.rank >= rankIndex {
					r.fail(
						m.path, "GPU %s is in mode %s, this grant needs %s: name a GPU of that mode, or change the mode",
						name(r.gpus[g]), mode, kind,
					)
				}
			}
		}
	}
	may := []gpu.UUID{}
	for g, id := range r.gpus {
		if selected[g] && r.mode(g) == kind && id.UUID != "" {
			may = append(may, id.UUID)
		}
	}
	return may
}

// optional reports whether an entry with the very same selector is optional: then a grant for that GPU is, too.
func (r *resolver) optional(s *api.Selector) bool {
	return slices.ContainsFunc(r.spec.GPUs, func(e api.GPUSpec) bool {
		return e.Optional && slices.Equal(e.Select.UUID, s.UUID) && slices.Equal(e.Select.PCI, s.PCI) &&
			slices.Equal(e.Select.Index, s.Index) &&
			slices.Equal(e.Select.PCIID, s.PCIID)
	})
}

func (r *resolver) mode(g int) string {
	if e, ok := r.out.GPUs[r.gpus[g].UUID]; ok {
		return r.spec.GPUs[e].Mode
	}
	return api.ModeUnmanaged
}

// present says in a few words what there is, so that a refusal shows what could have been meant.
func (r *resolver) present() string {
	switch n := len(r.gpus); n {
	case 0:
		return "there are no GPUs"
	case 1:
		return "there is one: " + name(r.gpus[0])
	default:
		first := slices.IndexFunc(r.gpus, func(g gpu.Identity) bool { return g.Index >= 0 }) // One that is missing may have no index.
		if first < 0 {
			return fmt.Sprintf("there are %d, and none has an index", n)
		}
		return fmt.Sprintf("there are %d, index %d to %d", n, r.gpus[first].Index, r.gpus[n-1].Index)
	}
}

func name(g gpu.Identity) string {
	if g.Index < 0 {
		return string(g.UUID)
	}
	return fmt.Sprintf("%d (%s)", g.Index, g.UUID)
}
