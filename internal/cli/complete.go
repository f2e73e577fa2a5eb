package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

// nameTimeout is how long to wait for names: completion and lists also work without them.
var nameTimeout = time.Second

// completer is the type of cobra's completion functions.
type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete offers the names that the daemon knows. It prints nothing if the daemon cannot be reached: an error in the
// middle of a command line does not help.
func (a *app) complete(names func(*api.Status) []string) completer {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		if len(a.hosts) > 0 { // It has other names than this one.
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(ctx, nameTimeout)
		defer cancel()
		s, err := a.client.Status(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, name := range names(s) {
			if word, _, _ := strings.Cut(name, "\t"); strings.HasPrefix(word, typed) {
				out = append(out, printable(word)+name[len(word):])
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFirst offers names for the first argument and nothing after it.
func (a *app) completeFirst(names func(*api.Status) []string) completer {
	offer := a.complete(names)
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offer(cmd, args, typed)
	}
}

func (a *app) completeFlag(c *cobra.Command, flag string, names func(*api.Status) []string) {
	_ = c.RegisterFlagCompletionFunc(flag, a.complete(names)) // It fails only for a flag that does not exist.
}

func yamlFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

func tenantsOf(s *api.Status) []string {
	var out []string
	for _, t := range s.Tenants {
		out = append(out, t.Name)
	}
	return out
}

// grantsOf lists the grants of one tenant, or of all tenants. The text after the tab is the description.
func grantsOf(s *api.Status, tenant string) []string {
	var out []string
	for _, t := range s.Tenants {
		if tenant != "" && t.Name != tenant {
			continue
		}
		for _, g := range t.Grants {
			out = append(out, g.Name+"\t"+describe(t.Name+": "+g.Text))
		}
	}
	return out
}

func leasesOf(s *api.Status) []string {
	var out []string
	for i := range s.Leases {
		out = append(out, s.Leases[i].ID+"\t"+describe(command(s.Leases[i].Command)))
	}
	return out
}

// detachedOf lists the leases whose output is kept.
func detachedOf(s *api.Status) []string {
	out := *s
	out.Leases = slices.DeleteFunc(slices.Clone(s.Leases), func(l api.Lease) bool { return l.Origin != api.OriginDetached })
	return leasesOf(&out)
}

// gpusOf offers the numbers first, the UUIDs for those who began to type one.
func gpusOf(s *api.Status) []string {
	var numbers, uuids []string
	for i := range s.GPUs {
		g := &s.GPUs[i]
		about := describe(strings.TrimPrefix(g.Model, "NVIDIA ") + ", " + gpuState(g))
		if g.Index >= 0 {
			numbers = append(numbers, strconv.Itoa(g.Index)+"\t"+about)
		}
		uuids = append(uuids, g.UUID+"\t"+about)
	}
	return append(numbers, uuids...)
}

// kindsOf lists what the caller's grants are of, as --kind takes it.
func kindsOf(s *api.Status) []string {
	var out []string
	for _, t := range s.Tenants {
		for _, g := range t.Grants {
			kind := g.Kind
			if text, ok := strings.CutPrefix(g.Text, "MIG "); ok && kind == api.ModeMIG {
				profile, _, _ := strings.Cut(text, " ")
				kind += ":" + profile
			}
			out = append(out, kind)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// describe keeps a description on its line and away from the tab that is before it.
func describe(s string) string { return printable(strings.ReplaceAll(s, "\t", " ")) }
