package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

// view is what of the status is shown, and how.
type view struct {
	tenant, gpu, user string
	mine              bool
	sort              string
	output            string
}

// viewOutputs are the values of --output, viewSorts those of --sort.
var (
	viewOutputs = []string{"wide", "json", "name"}
	viewSorts   = []string{"lease", "tenant", "user", "gpu", "memory", "share", "started", "idle"}
)

func (a *app) viewFlags(c *cobra.Command, o *view) {
	a.outputFlag(c, o)
	a.selectFlags(c, o)
}

func (a *app) outputFlag(c *cobra.Command, o *view) {
	c.Flags().StringVarP(&o.output, "output", "o", "", "wide: all columns, nothing is cut; json; name: the ids of the leases, one a line")
	_ = c.RegisterFlagCompletionFunc(
		"output", cobra.FixedCompletions(viewOutputs, cobra.ShellCompDirectiveNoFileComp),
	) // It fails only for a flag that does not exist.
}

// selectFlags are the flags that select leases and their order.
func (a *app) selectFlags(c *cobra.Command, o *view) {
	a.whichFlags(c, o)
	a.sortFlag(c, o)
}

func (a *app) sortFlag(c *cobra.Command, o *view) {
	c.Flags().StringVar(&o.sort, "sort", "", "order of the leases: "+strings.Join(viewSorts, ", "))
	_ = c.RegisterFlagCompletionFunc(
		"sort", cobra.FixedCompletions(viewSorts, cobra.ShellCompDirectiveNoFileComp),
	) // It fails only for a flag that does not exist.
}

// whichFlags are the flags that select leases.
func (a *app) whichFlags(c *cobra.Command, o *view) {
	c.Flags().StringVarP(&o.tenant, "tenant", "t", "", "only this tenant")
	c.Flags().StringVarP(&o.gpu, "gpu", "g", "", "only this GPU, by its index or UUID")
	c.Flags().StringVarP(&o.user, "user", "u", "", "only leases of this user")
	c.Flags().BoolVar(&o.mine, "mine", false, "only your own leases")
	a.completeFlag(c, "tenant", tenantsOf)
	a.completeFlag(c, "gpu", gpusOf)
	a.completeFlag(c, "user", usersOf)
}

func usersOf(s *api.Status) []string {
	var out []string
	for i := range s.Leases {
		out = append(out, s.Leases[i].User)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// width is the number of columns to print in; 0: as many as there are.
func (o *view) width(out io.Writer) int {
	if o.output == "wide" {
		return 0
	}
	return columnsOf(out)
}

// check refuses unknown values, and two kinds of output.
func (o *view) check(json bool) error {
	if json && o.output != "" && o.output != "json" {
		return usageError{err: fmt.Errorf("--json and --output %s exclude each other", o.output)}
	}
	if o.mine && o.user != "" {
		return usageError{err: errors.New("--mine and --user exclude each other")}
	}
	for _, f := range []struct {
		flag, value string
		valid       []string
	}{{"--output", o.output, viewOutputs}, {"--sort", o.sort, viewSorts}} {
		if f.value != "" && !slices.Contains(f.valid, f.value) {
			return usageError{err: fmt.Errorf("%s %q is unknown", f.flag, f.value), hint: "it is one of " + strings.Join(f.valid, ", ")}
		}
	}
	return nil
}

// selective reports whether leases are left out.
func (o *view) selective() bool { return o.tenant != "" || o.gpu != "" || o.user != "" || o.mine }

// selectPart removes from a status what was not requested, and sorts its leases.
func (a *app) selectPart(ctx context.Context, s *api.Status, o *view) error {
	uid := -1
	if o.mine {
		info, err := a.client.Info(ctx)
		if err != nil {
			return err
		}
		uid = info.Caller.UID
	}
	if o.selective() {
		if err := o.restrict(s, uid); err != nil {
			return err
		}
	}
	o.sortLeases(s)
	return nil
}

// restrict leaves the leases of the tenant, GPU and user, and the GPUs, tenants, users and conditions that belong to them.
func (o *view) restrict(s *api.Status, uid int) error {
	only := ""
	if o.gpu != "" {
		i, err := gpuNamed(s, o.gpu)
		if err != nil {
			return err
		}
		switch {
		case i >= 0:
			only = s.GPUs[i].UUID
		case slices.ContainsFunc(s.Leases, func(l api.Lease) bool { return slices.Contains(l.GPUs, o.gpu) }):
			only = o.gpu // of a lease of the account: it was removed from the node since
		default:
			return &api.Error{
				Kind:    api.KindNotFound,
				Message: fmt.Sprintf("there is no GPU %q that you may see", o.gpu),
				Hint:    "'gpushare gpu list' shows them",
			}
		}
	}
	if o.tenant != "" && !slices.ContainsFunc(s.Tenants, func(t api.TenantStatus) bool { return t.Name == o.tenant }) &&
		!slices.ContainsFunc(s.Leases, func(l api.Lease) bool { return l.Tenant == o.tenant }) {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no tenant %q that you may see", o.tenant),
			Hint:    "'gpushare tenant list' shows them",
		}
	}
	tenants, gpus, users := map[string]bool{o.tenant: true}, map[string]bool{only: true}, map[string]bool{o.user: true}
	leases := []api.Lease{}
	for i := range s.Leases {
		l := &s.Leases[i]
		if o.tenant != "" && l.Tenant != o.tenant || o.user != "" && l.User != o.user && strconv.Itoa(l.UID) != o.user ||
			o.mine && l.UID != uid ||
			only != "" && !slices.Contains(gpusUsedBy(s, l), only) {
			continue
		}
		leases = append(leases, *l)
		tenants[l.Tenant], users[l.User] = true, true
		for _, id := range gpusUsedBy(s, l) {
			gpus[id] = true
		}
	}
	for i := range s.Tenants { // What a tenant may use belongs to it without a lease too, and who may use a GPU to the GPU.
		for _, g := range s.Tenants[i].Grants {
			switch {
			case o.user != "" || o.mine:
			case o.tenant == s.Tenants[i].Name:
				for _, id := range g.GPUs {
					gpus[id] = true
				}
			case o.tenant == "" && slices.Contains(g.GPUs, only):
				tenants[s.Tenants[i].Name] = true
			}
		}
	}
	if only != "" {
		gpus = map[string]bool{only: true}
	}
	s.Leases = leases
	s.GPUs = slices.DeleteFunc(s.GPUs, func(g api.GPUStatus) bool { return !gpus[g.UUID] })
	s.Tenants = slices.DeleteFunc(s.Tenants, func(t api.TenantStatus) bool { return !tenants[t.Name] })
	s.Users = slices.DeleteFunc(s.Users, func(u api.UserStatus) bool { return !users[u.User] && u.UID != uid })
	s.Node.Conditions = slices.DeleteFunc(s.Node.Conditions, func(c api.Condition) bool {
		return c.GPU != "" && !gpus[c.GPU] || c.Tenant != "" && !tenants[c.Tenant]
	})
	return nil
}

// gpusUsedBy are the UUIDs of the GPUs that a lease is on.
func gpusUsedBy(s *api.Status, l *api.Lease) []string {
	out := slices.Clone(l.GPUs)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if slices.Contains(l.Devices, g.UUID) {
			out = append(out, g.UUID)
		}
		if g.MIG != nil &&
			slices.ContainsFunc(
				g.MIG.Instances, func(in api.InstanceStatus) bool { return in.Lease == l.ID || slices.Contains(in.Leases, l.ID) },
			) {
			out = append(out, g.UUID)
		}
	}
	return out
}

// sortLeases sorts by the requested key: amounts and times begin with the largest, names with the first.
func (o *view) sortLeases(s *api.Status) {
	if o.sort == "" {
		return
	}
	index := map[string]int{}
	for i := range s.GPUs {
		index[s.GPUs[i].UUID] = s.GPUs[i].Index
	}
	first := func(l *api.Lease) int {
		least := len(s.GPUs) + 1<<16
		for _, id := range gpusUsedBy(s, l) {
			if n, ok := index[id]; ok {
				least = min(least, n)
			}
		}
		return least
	}
	slices.SortStableFunc(s.Leases, func(x, y api.Lease) int {
		switch o.sort {
		case "tenant":
			return cmp.Compare(x.Tenant, y.Tenant)
		case "user":
			return cmp.Compare(x.User, y.User)
		case "gpu":
			return cmp.Compare(first(&x), first(&y))
		case "memory":
			return cmp.Compare(usedBy(&y), usedBy(&x))
		case "share":
			return cmp.Compare(busyOf(&y), busyOf(&x))
		case "started":
			return cmp.Compare(startOf(&y), startOf(&x))
		case "idle":
			return cmp.Compare(idleOf(&y), idleOf(&x))
		}
		return cmp.Compare(x.ID, y.ID)
	})
}

// The values by which leases are sorted; those without a value come last.
func usedBy(l *api.Lease) int64 {
	if l.GPUMemory == nil {
		return -1
	}
	return int64(min(l.GPUMemory.Used, 1<<62))
}

func busyOf(l *api.Lease) float64 {
	switch {
	case l.Share != nil && l.Share.Busy != nil:
		return *l.Share.Busy
	case l.Use != nil && l.Use.Busy != nil:
		return *l.Use.Busy
	}
	return -1
}

func idleOf(l *api.Lease) float64 {
	if l.IdleSeconds == nil {
		return -1
	}
	return *l.IdleSeconds
}

func startOf(l *api.Lease) int64 {
	if l.Started == nil {
		return -1
	}
	return l.Started.UnixNano()
}
