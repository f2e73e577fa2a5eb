package status

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// GetMPS returns the control daemon of one GPU or instance: its state, its clients, and what of its limits is enforced.
func (v *Viewer) GetMPS(c *server.Call) error {
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout)
	defer cancel()
	known, d, err := planner.MPSDevice(v.State.Desired(), v.Observer.Last(), c.R.PathValue("id"))
	if err != nil {
		return err
	}
	v.MPS.Reread(d) // The lists are read now, and not up to three minutes ago.
	v.Observer.Observe(ctx)
	p := v.inputs()
	g, ok := p.node.GPU(known.Identity.UUID)
	if !ok {
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("the driver does not list %s any more", known.Identity.Name()),
			Hint:    "'gpushare doctor' says more",
		}
	}
	tenantOf := map[string]string{}
	for i := range p.leases {
		tenantOf[p.leases[i].ID] = p.leases[i].Tenant
	}
	out := api.MPSDetail{
		SchemaVersion: 1, GPU: string(g.Identity.UUID), Index: g.Identity.Index,
		ClientList: []api.ProcessStatus{}, Servers: []int{}, Rules: v.mpsRules(g, d, p.leases),
	}
	var clients []int
	if in := g.InstanceAt(d.Instance); d.IsInstance() && in == nil {
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: planner.DeviceName(g, d) + " does not exist any more",
			Hint:    "'gpushare mps list' shows what exists",
		}
	} else if d.IsInstance() {
		out.MPSStatus, out.Profile, out.Instance = *p.instanceMPS(g, in), g.Profiles.GIName(in.ProfileID), new(api.MIGPlacement(d.Instance))
		clients = clientsIn(g, in)
	} else {
		out.MPSStatus, clients = *p.mps(g), clientsOf(g)
	}
	for _, pid := range clients {
		client := gpu.Process{PID: pid, Kind: gpu.MPSProcess}
		if i := slices.IndexFunc(g.Processes, func(r gpu.Process) bool { return r.PID == pid }); i >= 0 {
			client.Memory = g.Processes[i].Memory
		}
		out.ClientList = append(out.ClientList, p.process(&client, tenantOf))
	}
	if st := g.MPSOf(d); st != nil {
		out.Servers = append(slices.Concat(out.Servers, st.Servers), st.Leftovers...)
		if !st.Retry.IsZero() {
			out.Retry = &st.Retry
		}
	}
	return c.Reply(http.StatusOK, out)
}

// mpsRules says of the defaults of a control daemon, and of the limits of each lease, what enforces them.
func (v *Viewer) mpsRules(g *observe.GPU, on mps.Device, leases []api.Lease) []api.Rule {
	var rules []api.Rule
	m := g.MPSOf(on)
	if d := m.ReadDefaults(); d != nil {
		// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE cannot exceed the default. A default that every client may change enforces nothing.
		threads := api.Rule{
			What:     "default threads",
			Desired:  strconv.FormatFloat(d.Threads, 'f', -1, 64) + "%",
			Enforced: true,
			By:       "the control daemon, for clients that join from now on",
		}
		memory := api.Rule{What: "default GPU memory", Desired: "no limit"}
		if d.Threads >= 100 {
			threads.Enforced, threads.By, threads.Reason = false, "", "all threads are no limit"
		}
		if memory.Reason = "the control daemon has no limit"; d.Memory != "" {
			memory = api.Rule{What: memory.What, Desired: d.Memory, Enforced: true, By: "the control daemon, for each process by itself"}
		}
		for _, r := range []*api.Rule{&threads, &memory} {
			if can, _ := m.Program.Abilities(); r.Enforced && !can.OwnerOnly {
				r.Enforced, r.Advisory, r.By, r.Reason = false, true, "", "advisory: in this version each client may change it"
			}
		}
		rules = append(rules, threads, memory)
	}
	live := map[string]*lease.Lease{}
	for _, l := range v.Table.Live() {
		live[l.ID] = &l
	}
	for i := range leases {
		w := &leases[i]
		l, ok := live[w.ID]
		if !ok || !slices.Contains(l.Place.GPUs, on.GPU) ||
			on.IsInstance() && (l.Place.Instance == nil || *l.Place.Instance != on.Instance) {
			continue
		}
		for _, r := range []api.Rule{v.explainTime(l, w), v.explainMemory(l, w)} {
			r.What = w.ID + ": " + r.What
			rules = append(rules, r)
		}
	}
	return rules
}

// defaultLogLines is how many lines of a log are returned without a number.
const defaultLogLines = 50

// GetMPSLog returns the last lines of the control daemon of a GPU or an instance and its servers. They may name processes of every tenant.
func (v *Viewer) GetMPSLog(c *server.Call) error {
	_, d, err := planner.DeviceNamed(v.Observer.Last(), c.R.PathValue("id"))
	if err != nil {
		return err
	}
	n := defaultLogLines
	if text := c.Text("lines"); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > mps.MaxLogLines {
			return &api.Error{
				Kind:    api.KindInvalid,
				Message: fmt.Sprintf("cannot read lines %q: write a number from 1 to %d", strings.ToValidUTF8(text, ""), mps.MaxLogLines),
			}
		}
	}
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout)
	defer cancel()
	out := api.MPSLog{SchemaVersion: 1, GPU: string(d.GPU), Unit: mps.UnitName(d), Lines: v.MPS.LastLines(ctx, d, n)}
	if out.Lines == nil {
		out.Lines = []string{}
	}
	return c.Reply(http.StatusOK, out)
}
