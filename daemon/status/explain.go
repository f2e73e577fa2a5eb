package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// GetExplain reports for a lease or a tenant what is enforced and by what, and what is not enforced and why. It reads back.
func (v *Viewer) GetExplain(c *server.Call) error {
	name := c.Text("of")
	unknown := &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("there is no lease and no tenant %q that you may see", name),
		Hint:    "'gpushare lease list' and 'gpushare tenant list' show them",
	}
	if name == "" {
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "cannot explain: no lease or tenant is given",
			Hint:    "for example 'gpushare explain vision'",
		}
	}
	if l, ok := v.Table.Get(name); ok {
		if !c.Caller.SeesLease(l.Terms.Tenant, l.UID) {
			return unknown
		}
		return c.Reply(http.StatusOK, v.explainLease(c.Ctx(), &l))
	}
	if l, ok := v.Table.Queued(name); ok && c.Caller.Sees(l.Tenant) {
		return c.Reply(http.StatusOK, explainQueued(&l))
	}
	t, ok := v.State.Desired().Tenant(name)
	if !ok && c.Caller.Sees(name) {
		if e := v.explainKept(name); e != nil {
			return c.Reply(http.StatusOK, e)
		}
	}
	if !ok || !c.Caller.Sees(name) {
		return unknown
	}
	return c.Reply(http.StatusOK, v.explainTenant(t))
}

// explainTimeout limits how long one lease is read back.
const explainTimeout = 5 * time.Second

func (v *Viewer) explainLease(ctx context.Context, l *lease.Lease) *api.Explanation {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	e := &api.Explanation{
		SchemaVersion: 1,
		Name:          l.ID,
		Text:          fmt.Sprintf("a lease of grant %s of %s; its processes run %s", l.Terms.Spec.Name, l.Terms.Tenant, locationText(l)),
	}
	wire := l.Wire()
	v.measure(&wire)
	e.Rules = append(e.Rules, v.explainMembers(ctx, l), v.explainDevices(l), v.explainMemory(l, &wire), v.explainTime(l, &wire))
	if r := v.Managers.Enforce.TemperatureRule(l.ID); r != nil {
		e.Rules = append(e.Rules, v.unlessObserving(v.readBackPause(l, *r)))
	}
	e.Rules = append(e.Rules, v.explainClients(l)...)
	if t, ok := v.State.Desired().Tenant(l.Terms.Tenant); ok || !v.State.Desired().Enforcing() {
		if !ok {
			t = &api.TenantSpec{Name: l.Terms.Tenant} // The kernel may keep the limits that it had.
		}
		for _, r := range v.explainLimits(t) {
			if l.InPlace() && l.Origin != lease.OriginContainer {
				r = api.Rule{
					What:    r.What,
					Desired: r.Desired,
					Reason:  attribution.InPlaceReason(l) + ": the limits apply in the tenant's slice, and it is not in it",
				}
			}
			e.Rules = append(e.Rules, r)
		}
	}
	if l.Terms.Preempt == api.PreemptStop {
		e.Rules = append(e.Rules, v.explainPreempt(l))
	}
	e.Rules = append(e.Rules, v.explainRemoval(l)...)
	for _, u := range v.users() {
		if u.UID == l.UID && perUserText(&u) != "" {
			e.Rules = append(e.Rules, api.Rule{
				What:     "per_user",
				Desired:  u.User + " has " + perUserText(&u),
				Enforced: true,
				By:       "gpushared, when a lease gets its place",
			})
		}
	}
	if l.Expires != nil {
		_, maxTime := l.Time()
		r := api.Rule{
			What:     maxTime,
			Desired:  "until " + l.Expires.Format(time.RFC3339),
			Enforced: v.State.Desired().Enforcing(),
			By:       "gpushared, while it runs",
		}
		if l.InPlace() && l.Origin != lease.OriginContainer {
			r.By = "gpushared, while it runs: it stops the processes that use the GPU"
		}
		e.Rules = append(e.Rules, v.unlessObserving(r))
	}
	return e
}

// explainPreempt reports whether the lease may be stopped to free a place for another.
func (v *Viewer) explainPreempt(l *lease.Lease) api.Rule {
	r := api.Rule{
		What:    "preempt",
		Desired: "it may be stopped for a request of a tenant with a higher priority that waits",
		By:      "gpushared: SIGTERM, 10 s, SIGKILL",
	}
	if l.InPlace() {
		r.Reason, r.By = attribution.InPlaceReason(l)+": its end would not free its place", ""
		return r
	}
	r.Enforced = true
	return v.unlessObserving(r)
}

// explainRemoval reports what becomes of the lease if its user is not a member any more, and whether that is so.
func (v *Viewer) explainRemoval(l *lease.Lease) []api.Rule {
	uid, has := l.RightOf()
	stops := v.State.Desired().StopsOnRemoval(l.Terms.Tenant)
	why := ""
	if has {
		why, _ = v.Identities.Removed(uid, l.Terms.Tenant)
	}
	if !has || why == "" && !stops {
		return nil
	}
	r := api.Rule{
		What:     "on_removal",
		Desired:  "it goes on if its user is not a member any more",
		Enforced: true,
		By:       "gpushared: no new lease, and their user may stop it",
	}
	if stops {
		r.Desired, r.By = "it is stopped if its user is not a member any more", "gpushared: SIGTERM, 10 s, SIGKILL"
	}
	if why != "" {
		r.Desired += ": " + why
	}
	return []api.Rule{v.unlessObserving(r)}
}

// locationText returns where the processes of a lease run.
func locationText(l *lease.Lease) string {
	where := "without a cgroup of gpushare: the process tree is followed"
	switch {
	case l.Isolation.Unit != "":
		where = "in " + l.Isolation.Unit
	case l.Isolation.Cgroup != "":
		where = "in " + l.Isolation.Cgroup
	case l.InPlace():
		where = fmt.Sprintf("in the cgroup of pid %d, with its descendants", l.Process.PID)
	}
	if l.InPlace() {
		where += " (" + l.Origin + ")"
	}
	return where
}

// explainMembers counts the processes, and reports whether they can leave.
func (v *Viewer) explainMembers(ctx context.Context, l *lease.Lease) api.Rule {
	r := api.Rule{What: "processes"}
	members, err := v.Attribution.PortOf(l).Members(ctx, l.ID)
	switch {
	case errors.Is(err, cgroup.ErrNotFound):
		r.Reason = "the last one has just exited"
		return r
	case err != nil:
		r.Reason = "they cannot be listed: " + err.Error()
		return r
	}
	r.Desired = fmt.Sprintf("%d now", len(members))
	switch {
	case l.InPlace() && l.Cgroup == "":
		r.Reason = "a process that leaves both its parents and its session is lost"
	case l.InPlace():
		r.Reason = "a process that is moved out of its cgroup leaves the lease"
	case l.Isolation.Cgroup == "":
		r.Reason = "they are followed by their parents, which does not isolate them"
	default:
		r.Enforced, r.By = true, "its own cgroup; a process that leaves it is found and killed"
	}
	return v.unlessObserving(r)
}

// explainDevices reports which device nodes the lease may open.
func (v *Viewer) explainDevices(l *lease.Lease) api.Rule {
	r := api.Rule{What: "devices"}
	node := v.Observer.Last()
	rules, _, err := v.Policy.DeviceRules(node, l)
	if err != nil {
		r.Reason = err.Error()
		return r
	}
	r.Desired = ruleNames(rules)
	slice := sliceState(node, state.SliceOf(l))
	switch {
	case !l.Isolation.Devices:
		r.Reason = cmp.Or(l.Isolation.DevicesReason, "it can open every device that it could open before")
	case l.Origin == lease.OriginContainer && slice != nil:
		r.Enforced, r.Desired = slice.Closed, ruleNames(slice.Devices)
		r.By = "the device program of its grant's slice " + slice.Path + ", read back"
	case l.InPlace():
		r.Enforced = v.State.Desired().Enforcing() || len(node.LoginFilters) > 0
		r.By = "the login filter on its cgroup: it may open the GPUs of its user's leases, and no other managed GPU"
	case slice == nil || !slice.Closed:
		r.Reason = "the device program of its grant's slice was not found when it was read back"
	default:
		r.Enforced, r.By = true, "device programs of its own cgroup and of its grant's slice, the latter read back"
	}
	return v.keptWhileObserving(r)
}

func sliceState(node *observe.Node, name cgroup.SliceName) *cgroup.SliceState {
	if i := slices.IndexFunc(node.Slices, func(s cgroup.SliceState) bool { return s.Name == name }); i >= 0 {
		return &node.Slices[i]
	}
	return nil
}

func ruleNames(rules []cgroup.DeviceRule) string {
	names := make([]string, 0, len(rules))
	for _, r := range rules {
		if r.Name == "" {
			r.Name = fmt.Sprintf("%c %d:%d", r.Type, r.Major, r.Minor)
		}
		names = append(names, r.Name)
	}
	if len(names) == 0 {
		return "no GPU"
	}
	return strings.Join(names, " ")
}

// explainMemory reports what enforces the limit of GPU memory.
func (v *Viewer) explainMemory(l *lease.Lease, w *api.Lease) api.Rule {
	r := api.Rule{What: "GPU memory"}
	if w.GPUMemory == nil || w.GPUMemory.Limit == 0 {
		r.Desired, r.Reason = "no limit", "the grant has none: the memory of the GPU is the limit"
		if l.Terms.Kind() == api.ModeExclusive {
			r.Reason = "it has the whole GPU"
		}
		return r
	}
	c := v.Managers.Memory.Choice(l)
	r.Desired = api.Bytes(w.GPUMemory.Limit).Short() + memoryQualifier(c)
	if !w.GPUMemory.Unknown { // Otherwise what is used is not what was measured of it.
		r.Desired += ", of which " + api.Bytes(w.GPUMemory.Used).Short() + " are used"
	}
	if r.Enforced = c.Enforced; !r.Enforced {
		r.Reason, r.Advisory = c.Reason, c.Advisory()
		return v.unlessObserving(r)
	}
	if why := v.whyUnmeasured(w, c); why != "" {
		return v.unlessObserving(api.Rule{What: r.What, Desired: r.Desired, Reason: why, Advisory: c.Backend == quota.BackendMPS})
	}
	if r.By = c.Reason; !c.Hard {
		r.Accuracy = reactiveAccuracy
	}
	if c.Backend == quota.BackendMIG {
		return r // The hardware enforces it on a node that only observes too.
	}
	return v.unlessObserving(r)
}

// explainTime reports what enforces the share of the GPU's time. The freezer's state is read back.
func (v *Viewer) explainTime(l *lease.Lease, w *api.Lease) api.Rule {
	r := api.Rule{What: "GPU time"}
	switch l.Terms.Kind() {
	case api.ModeMIG:
		if l.Place.Compute != "" {
			return api.Rule{
				What:     r.What,
				Desired:  "its own compute instance, " + l.Place.Profile,
				Enforced: true,
				By:       "the hardware: no other lease computes on its slices",
			}
		}
		return api.Rule{
			What:     r.What,
			Desired:  "its own instance",
			Enforced: true,
			By:       "the hardware: no other lease computes on its slices",
		}
	case api.ModeExclusive:
		r.Desired = "all of " + text.Count(len(l.Place.GPUs), "GPU")
		r.Enforced, r.By = true, "no other lease gets it"
		return r
	case api.ModeMPS:
		r.Desired = "threads, " + shareText(w)
		if in := l.Place.Instance; in != nil {
			r.Desired += fmt.Sprintf(" of its %s instance at %d", l.Place.Profile, in.Start)
		}
		if l.InPlace() {
			r.Reason = "it applies only to processes that were started with the environment of the lease"
			return r
		}
		// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE belongs to the process, which may unset it, or use the GPU without the server.
		r.Advisory, r.Reason = true, "advisory: each process asks the MPS server for it, by its environment"
		return r
	}
	return v.unlessObserving(v.explainSlices(l, w))
}

// explainSlices reports what enforces the share of a lease on a time-sliced GPU.
func (v *Viewer) explainSlices(l *lease.Lease, w *api.Lease) api.Rule {
	r := api.Rule{What: "GPU time", Desired: shareText(w)}
	var slices *api.TimeSlices
	if len(l.Place.GPUs) == 1 {
		slices = v.Managers.Enforce.TimeSlices(l.Place.GPUs[0])
	}
	switch {
	case l.InPlace() && v.State.Desired().NeverFrozen(l) != "":
		r.Reason = v.State.Desired().NeverFrozen(l)
	case !w.Isolation.Freeze || v.Freezer == nil:
		r.Reason = "nothing can be frozen here (" + v.Port.Info().Detail + ")"
	case v.FreezerReady() != nil:
		r.Reason = "no lease is frozen: " + v.FreezerReady().Error()
	case slices != nil && slices.Contended && !slices.Enforced:
		r.Reason = slices.Reason
	case l.InPlace() && w.Share != nil && !w.Share.Enforced && w.Share.Reason != "":
		r.Reason = w.Share.Reason
	default:
		read := v.Attribution.PortOf(l).Frozen
		if l.InPlace() {
			read = v.JobFrozen
		}
		frozen, err := read(l.ID)
		if err != nil {
			r.Reason = "its freezer cannot be read: " + err.Error()
			break
		}
		r.Enforced, r.By = true, "its cgroup's freezer, read back: it runs now"
		if frozen {
			r.By = "its cgroup's freezer, read back: it is frozen now, for " + frozenFor(v.Freezer.Reasons(l.ID))
		}
		r.By += measuredShare(w.Share, slices)
		r.Accuracy = shareAccuracy(w.Share)
		if w.Share != nil && w.Share.State == api.ShareUnmet {
			r.Enforced, r.By, r.Reason = false, "", r.By
		}
	}
	return r
}

// readBackPause returns a rule that says that a lease is paused with what its freezer says.
func (v *Viewer) readBackPause(l *lease.Lease, r api.Rule) api.Rule {
	if !r.Enforced {
		return r
	}
	frozen, err := v.Attribution.PortOf(l).Frozen(l.ID)
	switch {
	case err != nil:
		r.Enforced, r.Reason = false, "its freezer cannot be read: "+err.Error()
	case !frozen:
		r.Enforced, r.Reason = false, "its freezer, read back, says that it runs"
	default:
		r.By = "its cgroup's freezer, read back: it is frozen now"
	}
	return r
}

// frozenFor says for what a lease is frozen.
func frozenFor(reasons []cgroup.FreezeReason) string {
	var list []string
	for _, r := range reasons {
		list = append(list, r.String())
	}
	if len(list) == 0 {
		return "no reason that gpushare knows"
	}
	return strings.Join(list, " and ")
}

func shareText(w *api.Lease) string {
	if w.Share == nil {
		return ""
	}
	if w.Share.Latency != "" {
		return fmt.Sprintf("%.0f%%, latency: %s", w.Share.Entitled, w.Share.Latency)
	}
	return fmt.Sprintf("%.0f%%", w.Share.Entitled)
}

// unlessObserving returns the rule as not enforced on a node that only observes.
func (v *Viewer) unlessObserving(r api.Rule) api.Rule {
	if !v.State.Desired().Enforcing() {
		r.Enforced, r.By, r.Reason = false, "", observes
	}
	return r
}

// keptWhileObserving returns a rule that was read back from the kernel. On a node that only observes it stays what the kernel enforces.
func (v *Viewer) keptWhileObserving(r api.Rule) api.Rule {
	switch {
	case v.State.Desired().Enforcing():
	case r.Enforced:
		r.By += "; " + observes + keptText
	default:
		return v.unlessObserving(r)
	}
	return r
}

// explainLimits returns a tenant's limits as read back.
func (v *Viewer) explainLimits(t *api.TenantSpec) []api.Rule {
	node := v.Observer.Last()
	by := "the tenant's slice"
	if s := sliceState(node, cgroup.SliceName{Tenant: t.Name}); s != nil && s.Path != "" {
		by = s.Path
	}
	var out []api.Rule
	for _, l := range limitsOf(t, v.State.Desired().Enforcing(), v.Port.Info(), node.Slices) {
		r := api.Rule{What: l.Name, Desired: l.Desired, Reason: l.Reason}
		switch {
		case l.InForce == "":
		case l.Reason != "": // The kernel keeps it, whatever the spec says now.
			r.Enforced, r.By, r.Reason = true, by+", read back as "+l.InForce+"; "+l.Reason, ""
		case l.InForce == l.Desired:
			r.Enforced, r.By = true, by+", read back as "+l.InForce
		default:
			r.Reason = "read back as " + l.InForce
		}
		out = append(out, r)
	}
	return out
}

func (v *Viewer) explainTenant(t *api.TenantSpec) *api.Explanation {
	node := v.Observer.Last()
	e := &api.Explanation{SchemaVersion: 1, Name: t.Name, Text: fmt.Sprintf("a tenant with %s", text.Count(len(t.Grants), "grant"))}
	e.Rules = v.explainLimits(t)
	if t.Preempt == api.PreemptStop {
		e.Rules = append(
			e.Rules,
			v.unlessObserving(api.Rule{
				What:     "preempt",
				Desired:  "its leases may be stopped for a request of a tenant with a higher priority that waits",
				Enforced: true,
				By:       "gpushared: SIGTERM, 10 s, SIGKILL",
			}),
		)
	}
	if t.OnRemoval == api.OnRemovalStop {
		e.Rules = append(
			e.Rules,
			v.unlessObserving(api.Rule{
				What:     "on_removal",
				Desired:  "the leases of users who are not members any more are stopped",
				Enforced: true,
				By:       "gpushared: SIGTERM, 10 s, SIGKILL",
			}),
		)
	}
	if p := v.State.Desired().Spec.Node.PerUser; p != nil {
		e.Rules = append(e.Rules, api.Rule{
			What:     "per_user",
			Desired:  "each user at most " + perUserLimits(p) + ", over all tenants",
			Enforced: true,
			By:       "gpushared, when a lease gets its place",
		})
	}
	e.Rules = append(e.Rules, v.explainLately(t.Name))
	for i := range t.Grants {
		g := &t.Grants[i]
		r := api.Rule{What: "devices of " + g.Name}
		switch s := sliceState(node, cgroup.SliceName{Tenant: t.Name, Grant: g.Name}); {
		case s == nil && !v.Port.Info().Slices:
			r.Reason = "no cgroups are available (" + v.Port.Info().Detail + ")"
		case s == nil:
			r.Reason = "its slice does not exist"
		case !s.Closed && v.Port.Info().NoDevices != "":
			r.Reason = v.Port.Info().NoDevices
		case !s.Closed:
			r.Reason = "all devices can be opened in " + s.Path
		default:
			r.Desired, r.Enforced = ruleNames(s.Devices), true
			r.By = "the device program of " + s.Path + ", read back; each lease may open fewer"
		}
		e.Rules = append(e.Rules, v.keptWhileObserving(r))
		e.Rules = append(e.Rules, v.explainGrantMemory(t, g)...)
	}
	return e
}

// explainGrantMemory reports what limits the GPU memory of a grant, one rule for each different answer of its GPUs.
func (v *Viewer) explainGrantMemory(t *api.TenantSpec, g *api.GrantSpec) []api.Rule {
	limit := state.GrantMemory(g)
	if limit == 0 {
		return nil
	}
	var out []api.Rule
	on := map[quota.MemoryChoice][]string{}
	var order []quota.MemoryChoice
	node := v.Observer.Last()
	for _, id := range v.State.Desired().Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}] {
		gp, ok := node.GPU(id)
		if !ok {
			continue
		}
		c := v.Managers.Memory.GrantChoice(t, g, id)
		if on[c] == nil {
			order = append(order, c)
		}
		on[c] = append(on[c], gp.Identity.Argument())
	}
	for _, c := range order {
		r := api.Rule{
			What:    "GPU memory of " + g.Name,
			Desired: api.Bytes(limit).Short() + memoryQualifier(c) + " on GPU " + strings.Join(on[c], ", "),
		}
		if r.Enforced = c.Enforced; r.Enforced {
			r.By = c.Reason
		} else {
			r.Reason = c.Reason
		}
		out = append(out, v.unlessObserving(r))
	}
	return out
}
