package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// drainPoll is the time between two looks at the leases of a GPU that is drained.
const drainPoll = 500 * time.Millisecond

// drainTimeout is how long 'gpushare gpu drain' waits by default.
const drainTimeout = api.Duration(time.Hour)

func (a *app) gpuCordon() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "cordon GPU", Short: "Close a GPU to new leases", Args: exactArgs(1, "a GPU's index or UUID"),
		Long: `Cordon closes a GPU to new leases. Those that run continue. It is no part of the spec: a
cordoned GPU stays cordoned over every apply, over a restart of the daemon and over a boot,
until 'gpushare gpu uncordon'. The status shows who cordoned it, since when and why.`,
		Example:           "  gpushare gpu cordon 3 --reason \"its fan is replaced on Monday\"",
		ValidArgsFunction: a.completeFirst(gpusOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := a.client.CordonGPU(cmd.Context(), id, reason)
			return a.cordoned(r, err)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for those who read the status and the audit")
	return c
}

func (a *app) gpuUncordon() *cobra.Command {
	return &cobra.Command{
		Use: "uncordon GPU", Short: "Open a cordoned GPU to new leases again", Args: exactArgs(1, "a GPU's index or UUID"),
		Example: "  gpushare gpu uncordon 3", ValidArgsFunction: a.completeFirst(gpusOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := a.client.UncordonGPU(cmd.Context(), id)
			return a.cordoned(r, err)
		},
	}
}

// cordoned prints what became of a request.
func (a *app) cordoned(r *api.CordonResult, err error) error {
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(r)
	case r.Cordoned == nil && !r.Changed:
		fmt.Fprintf(a.io.Out, "%s was not cordoned\n", gpuName(r.Index, r.GPU))
	case r.Cordoned == nil:
		fmt.Fprintf(a.io.Out, "%s is no longer cordoned\n", gpuName(r.Index, r.GPU))
	default:
		fmt.Fprintf(a.io.Out, "%s is cordoned: it takes no new lease\n", gpuName(r.Index, r.GPU))
		for _, l := range r.Leases {
			fmt.Fprintf(a.io.Out, "  %s runs on\n", printable(l))
		}
	}
	return nil
}

func (a *app) gpuDrain() *cobra.Command {
	var reason string
	limit := new(drainTimeout)
	var stop bool
	c := &cobra.Command{
		Use: "drain GPU", Short: "Close a GPU to new leases, and wait until it has none", Args: exactArgs(1, "a GPU's index or UUID"),
		Long: `Drain cordons a GPU and waits until its leases have ended. With --stop it stops them:
SIGTERM, a grace period, then SIGKILL. When the time is over it names those that are left
and exits with 6; the GPU stays cordoned in any case, until 'gpushare gpu uncordon'.`,
		Example:           "  gpushare gpu drain 3\n  gpushare gpu drain 3 --stop --timeout 5m --reason \"the driver is upgraded\"",
		ValidArgsFunction: a.completeFirst(gpusOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.gpuID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := a.client.CordonGPU(cmd.Context(), id, reason)
			if err != nil {
				return err
			}
			if !a.json {
				fmt.Fprintf(a.io.Out, "%s is cordoned: it takes no new lease\n", gpuName(r.Index, r.GPU))
			}
			left, err := a.drain(cmd.Context(), waitLimit(limit), stop, func(s *api.Status) []api.Lease { return leasesOn(s, r.GPU) })
			return a.drained(r, left, err)
		},
	}
	c.Flags().BoolVar(&stop, "stop", false, "stop the leases of the GPU: SIGTERM, a grace period, then SIGKILL")
	timeoutFlag(c, &limit, "wait until the GPU has no lease")
	c.Flags().StringVar(&reason, "reason", "", "why, for those who read the status and the audit")
	return c
}

// drained prints the end of a drain. left are the leases that have not ended.
func (a *app) drained(r *api.CordonResult, left []string, err error) error {
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(struct {
			*api.CordonResult
			Leases []string `json:"leases"`
		}{r, left}); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return &exitError{code: api.ExitDegraded, err: &api.Error{
			Kind: api.KindDegraded,
			Message: fmt.Sprintf(
				"%s is not drained yet: %s left: %s", gpuName(r.Index, r.GPU), text.Count(len(left), "lease"), strings.Join(left, ", "),
			),
			Hint: fmt.Sprintf("it stays cordoned; 'gpushare gpu drain %s --stop' stops them", gpuArgument(r.Index, r.GPU)),
		}}
	}
	if !a.json {
		fmt.Fprintf(a.io.Out, "done: %s has no leases\n", gpuName(r.Index, r.GPU))
	}
	return nil
}

// leasesOn are the leases that have a GPU.
func leasesOn(s *api.Status, id string) []api.Lease {
	var out []api.Lease
	for i := range s.Leases {
		if l := &s.Leases[i]; l.State != "queued" && slices.Contains(l.GPUs, id) {
			out = append(out, *l)
		}
	}
	return out
}

// drain waits until there are no leases, stops them if requested, and prints those that end. It returns those that are left when
// the time is over.
func (a *app) drain(ctx context.Context, limit time.Duration, stop bool, of func(*api.Status) []api.Lease) ([]string, error) {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	stopCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stopping sync.WaitGroup
	defer stopping.Wait()
	slots := make(chan struct{}, 4) // The daemon admits a few requests of one user at once.
	requested, shown := map[string]bool{}, map[string]string{}
	failed := make(chan error, 1)
	for {
		s, err := a.client.Status(ctx)
		if err != nil {
			return nil, stillCordoned(err)
		}
		now := of(s)
		left := a.drainProgress(now, shown)
		if len(left) == 0 {
			return left, nil
		}
		for i := range now {
			id := now[i].ID
			if !stop || requested[id] {
				continue
			}
			requested[id] = true
			stopping.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if err := a.client.StopLease(stopCtx, id); err != nil && stopCtx.Err() == nil && !ended(err) {
					select {
					case failed <- fmt.Errorf("cannot stop lease %s: %w", id, err):
					default:
					}
				}
			})
		}
		select {
		case <-ctx.Done():
			return nil, stillCordoned(ctx.Err())
		case err := <-failed:
			return nil, err
		case <-deadline.C:
			return left, nil
		case <-time.After(drainPoll):
		}
	}
}

// ended reports whether a lease could not be stopped because it has ended.
func ended(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Kind == api.KindNotFound
}

// stillCordoned is the end of a wait that was interrupted.
func stillCordoned(err error) error {
	if errors.Is(err, context.Canceled) {
		return &interruptedError{hint: "it stays closed to new leases"}
	}
	return err
}

// drainProgress prints the leases that are waited for, and those that have ended, and returns the first.
func (a *app) drainProgress(now []api.Lease, shown map[string]string) []string {
	left := []string{}
	for i := range now {
		l := &now[i]
		left = append(left, l.ID)
		if shown[l.ID] == l.State {
			continue
		}
		if shown[l.ID] = l.State; !a.json {
			fmt.Fprintf(a.io.Out, "  %-8s  %s of %s\n", l.State, printable(l.ID), printable(l.User))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(shown)) {
		if !slices.Contains(left, id) {
			delete(shown, id)
			if !a.json {
				fmt.Fprintf(a.io.Out, "  %-8s  %s\n", "ended", printable(id))
			}
		}
	}
	return left
}

func (a *app) gpuShow() *cobra.Command {
	return &cobra.Command{
		Use:               "show GPU",
		Short:             "Show one GPU: its state and who closed it, its instances, leases and processes",
		Args:              exactArgs(1, "a GPU's index or UUID"),
		Example:           "  gpushare gpu show 3\n  gpushare gpu show 3 --json",
		ValidArgsFunction: a.completeFirst(gpusOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.client.StatusNow(cmd.Context())
			if err != nil {
				return err
			}
			i, err := gpuNamed(s, args[0])
			if err != nil {
				return err
			}
			if i < 0 {
				return &api.Error{
					Kind:    api.KindNotFound,
					Message: fmt.Sprintf("there is no GPU %q", args[0]),
					Hint:    "'gpushare gpu list' shows them",
				}
			}
			g, leases, conditions := &s.GPUs[i], leasesOn(s, s.GPUs[i].UUID), []api.Condition{}
			for _, c := range s.Node.Conditions {
				if c.GPU == g.UUID {
					conditions = append(conditions, c)
				}
			}
			if a.json {
				if leases == nil {
					leases = []api.Lease{}
				}
				return a.printJSON(struct {
					SchemaVersion int             `json:"schema_version"`
					GPU           *api.GPUStatus  `json:"gpu"`
					Leases        []api.Lease     `json:"leases"`
					Conditions    []api.Condition `json:"conditions"`
				}{1, g, leases, conditions})
			}
			a.gpuDetail(g, leases, conditions)
			return nil
		},
	}
}

func (a *app) gpuDetail(g *api.GPUStatus, leases []api.Lease, conditions []api.Condition) {
	rows := [][]string{
		{"GPU", gpuWithUUID(g.Index, g.UUID)},
		{"model", dash(g.Model)},
		{"PCI", dash(g.PCI)},
		{"mode", g.Mode},
		{"state", g.State},
	}
	for i, why := range reasonsOf(g) {
		rows = append(rows, []string{first(i, "reason"), why})
	}
	for i := range g.Closures {
		c := &g.Closures[i]
		if c.Instance != nil {
			rows = append(rows, []string{"closed", fmt.Sprintf("instance at %d: %s", c.Instance.Start, c.Reason)})
		} else if c.Tenant != "" {
			rows = append(rows, []string{"closed", c.Reason})
		}
	}
	if g.Cordoned != nil {
		rows = append(rows, []string{"cordoned", cordonText(g.Cordoned)})
	}
	rows = append(rows, []string{"memory", memory(g.Memory)})
	rows = append(rows, sensorRows(g.Sensors, g.Health)...)
	rows = append(rows, healthRows(g.Health)...)
	if g.Utilization != nil {
		rows = append(rows, []string{"utilization", fmt.Sprintf("%d%%", *g.Utilization)})
	}
	if g.ReadAt != nil {
		rows = append(rows, []string{"read", g.ReadAt.Local().Format(time.DateTime)})
	}
	if g.MIG != nil {
		for i := range g.MIG.Instances {
			in := &g.MIG.Instances[i]
			rows = append(rows, []string{"instance", fmt.Sprintf("%s at %d%s", in.Profile, in.Placement.Start, join(": ", in.Lease))})
		}
	}
	for i := range leases {
		rows = append(
			rows, []string{"lease", fmt.Sprintf("%s of %s (%s), %s", leases[i].ID, leases[i].User, leases[i].Tenant, leases[i].State)},
		)
	}
	for i := range g.Processes {
		p := &g.Processes[i]
		rows = append(rows, []string{"process", pid(p.PID) + join(" ", p.Command) + join(", lease ", p.Lease)})
	}
	for i := range conditions {
		rows = append(rows, []string{"condition", conditions[i].Message})
		if conditions[i].Kind == "health" && conditions[i].Hint != "" {
			rows = append(rows, []string{"", conditions[i].Hint})
		}
	}
	a.table(rows)
}

// first is the head of a row, if it is the first of those with the same head.
func first(i int, head string) string {
	if i > 0 {
		return ""
	}
	return head
}

// cordonText is who cordoned a GPU, since when and why.
func cordonText(k *api.Cordon) string {
	out := "since " + k.Since.Local().Format(time.DateTime)
	if k.By != "" {
		out = "by " + k.By + ", " + out
	}
	return out + join(": ", k.Reason)
}
