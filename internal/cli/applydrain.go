package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/slurm"
)

// draining is how the node is drained in Slurm around an apply.
type draining struct {
	on    bool
	limit *api.Duration // for the jobs that run; nil: defaultDrainTimeout
	node  string        // Slurm's name of this node; empty: the host's name without its domain
}

// defaultDrainTimeout is for how long the jobs are waited for.
const defaultDrainTimeout = api.Duration(time.Hour)

func (d *draining) timeout() time.Duration {
	if d.limit == nil {
		return time.Duration(defaultDrainTimeout)
	}
	return waitLimit(d.limit)
}

func (d *draining) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(
		&d.on, "drain", false,
		"drain this node in Slurm first if the change is of GPUs that Slurm places on, wait for its jobs, and resume it afterwards",
	)
	f.Var(
		duration{&d.limit},
		"drain-timeout",
		"with --drain: for how long the jobs are waited for; then nothing is changed; 0 is no limit (default "+defaultDrainTimeout.String()+")",
	)
}

// jobFlags say what is known of the jobs of engines on the GPUs that are changed.
func jobFlags(c *cobra.Command, drained *[]string, d *draining) {
	f := c.Flags()
	f.Func(
		"drained",
		"the jobs of this `ENGINE`, slurm or kubernetes, on the GPUs that are changed have ended, and it starts no new ones; may be given more than once",
		func(s string) error {
			if s != api.OwnerSlurm && s != api.OwnerKubernetes {
				return fmt.Errorf("an engine is %s or %s", api.OwnerSlurm, api.OwnerKubernetes)
			}
			*drained = append(*drained, s)
			return nil
		},
	)
	f.StringVar(&d.node, "slurm-node", "", "Slurm's name of this node, its NodeName (default the host's name without its domain)")
}

// saysDrained is what says that an engine which is not asked has no jobs.
const saysDrained = "--drained " + api.OwnerSlurm + " says that its jobs have ended and that it starts no new ones"

// send sends a spec.
func (a *app) send(ctx context.Context, doc []byte, o client.ApplyOptions, d *draining) (res *api.ApplyResult, err error) {
	err = a.nextToJobs(ctx, &o.Drained, d, func() (err error) {
		res, err = a.client.Apply(ctx, doc, o)
		return err
	})
	return res, err
}

// nextToJobs sends a change. The daemon sees the use of GPUs and no jobs: where it refuses a change because a job of Slurm may have one of
// them, Slurm is asked. A node that is drained and has no jobs is no reason to refuse; one that is idle may have a job a moment later.
// drained are the engines that the change is sent with.
func (a *app) nextToJobs(ctx context.Context, drained *[]string, d *draining, send func() error) error {
	err := send()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Kind != api.KindInUse || !slices.Equal(e.Engines, []string{api.OwnerSlurm}) || slices.Contains(*drained, api.OwnerSlurm) {
		return err
	}
	out := *e
	node, unknown := a.slurmNode(ctx, d)
	switch {
	case errors.Is(unknown, external.ErrNoProgram) && !slurmdRuns(), unknown == nil && free(node):
		*drained = append(slices.Clone(*drained), api.OwnerSlurm)
		return send()
	case errors.Is(unknown, external.ErrNoProgram):
		out.Message += "; slurmd runs here, and whether the node has jobs is not known: " + unknown.Error()
		out.Hint += "; PATH has to have scontrol, or " + saysDrained
	case unknown != nil:
		out.Message += "; whether the node has jobs is not known: " + unknown.Error()
		out.Hint += "; --slurm-node names the node where Slurm calls it otherwise; " + saysDrained
	case len(node.OutOfService()) > 0:
		out.Message += fmt.Sprintf("; jobs may run on the node that slurmctld does not have: it says %s (%s)", node.State(), node.Reason)
		out.Hint += "; " + saysDrained
	case node.Busy():
		out.Message += "; the node has jobs: Slurm says " + node.State()
	default:
		out.Message += "; the node is not drained, so it may have a job at any moment: Slurm says " + node.State()
	}
	return &out
}

// free reports whether a node has no jobs, and gets none.
func free(n *slurm.Node) bool { return n.Drained() && !n.Busy() && len(n.OutOfService()) == 0 }

// hostRoot is where the processes of this host are found.
var hostRoot = "/"

// slurmdRuns reports whether slurmd runs on this host, as far as that can be read: what cannot be read may be one.
func slurmdRuns() bool {
	var host external.Host
	host.Processes(hostRoot)
	return host.Slurmd != 0 || len(host.Errs) > 0
}

// slurmNode is what slurmctld has of this node.
func (a *app) slurmNode(ctx context.Context, d *draining) (*slurm.Node, error) {
	name, err := a.slurmName(ctx, d)
	if err != nil {
		return nil, err
	}
	out, err := a.slurmProgram(ctx, "scontrol", "-o", "show", "node", name)
	if n, ok := slurm.ParseNode(out); ok && n.Name == name {
		return &n, nil
	}
	if err == nil {
		err = errors.New("slurmctld has no node " + name)
	}
	return nil, err
}

func (a *app) slurmName(ctx context.Context, d *draining) (string, error) {
	if d.node == "" {
		s, err := a.client.Status(ctx)
		if err != nil {
			return "", err
		}
		d.node, _, _ = strings.Cut(s.Node.Host, ".")
	}
	if !slurm.NodeName(d.node) {
		return "", usageError{err: fmt.Errorf("%q is no name of a node of Slurm", d.node), hint: "name it with --slurm-node"}
	}
	return d.node, nil
}

// applyDrained applies a spec with this node drained in Slurm, if the spec changes GPUs that Slurm places on.
func (a *app) applyDrained(cmd *cobra.Command, doc []byte, o client.ApplyOptions, how *applying) error {
	switch {
	case how.noWait || o.Check:
		return usageError{err: errors.New("--drain waits for the end of the change"), hint: "leave out --no-wait and --check"}
	case slices.Contains(o.Drained, api.OwnerSlurm):
		return usageError{err: errors.New("--drained slurm says that the node is drained already"), hint: "leave out --drain"}
	}
	before := cmd.Context()
	ctx, stop := untilHangup(before)
	defer stop()
	cmd.SetContext(ctx)
	defer cmd.SetContext(before)
	engines, resets, err := a.enginesInTheWay(ctx, doc, o, how)
	if err != nil {
		return err
	}
	o.Resets = resets
	if !slices.Contains(engines, api.OwnerSlurm) {
		return a.applied(cmd, doc, o, how) // No job of Slurm is in the way.
	}
	drain := &slurmDrain{app: a, draining: how.drain, reason: fmt.Sprintf("gpushare-apply-%d-%d", time.Now().Unix(), os.Getpid())}
	if err := drain.begin(ctx); err != nil {
		return drain.undo(ctx, err)
	}
	if err := drain.wait(ctx); err != nil {
		return drain.undo(ctx, err)
	}
	o.Drained = append(slices.Clone(o.Drained), api.OwnerSlurm)
	err = a.applied(cmd, doc, o, how)
	return drain.end(ctx, err, how.maybeAccepted)
}

// enginesInTheWay are the engines whose jobs may have GPUs that a spec changes, and which GPUs it may reset, which a terminal is asked.
// Engines that this command does not drain, and that are not said to be drained, are a refusal: the jobs of a node are not waited for in
// vain.
func (a *app) enginesInTheWay(ctx context.Context, doc []byte, o client.ApplyOptions, how *applying) (engines, resets []string, err error) {
	o.Check, o.IfMatch = true, how.match
	var res *api.ApplyResult
	err = a.withPermission(ctx, o.File, !o.AllowReset, func(permitted []string) (err error) {
		o.Resets = permitted
		res, err = a.client.Apply(ctx, doc, o)
		return err
	})
	refused, ok := errors.AsType[*api.Error](err)
	switch {
	case err == nil:
		engines = res.Plan.Engines
	case ok && refused.Kind == api.KindInUse && len(refused.Engines) > 0:
		engines = refused.Engines
	default:
		a.refusedPlan(ctx, err)
		return nil, nil, err
	}
	if ok && !o.Force {
		if err := a.refusedAfterDrain(ctx, refused); err != nil {
			return nil, nil, err
		}
	}
	left := slices.DeleteFunc(slices.Clone(engines), func(engine string) bool {
		return engine == api.OwnerSlurm || slices.Contains(o.Drained, engine)
	})
	if len(left) == 0 || o.Force {
		return engines, o.Resets, nil
	}
	out := &api.Error{Kind: api.KindInUse, Engines: engines, Hint: "nothing was changed"}
	if ok {
		*out = *refused
	}
	names := strings.Join(left, " and ")
	out.Message = fmt.Sprintf("cannot drain the node: this changes GPUs that %s places on, and --drain drains it in Slurm alone", names)
	out.Hint += "; --drained " + strings.Join(left, " --drained ") + " says that its jobs have ended and that it starts no new ones"
	return nil, nil, out
}

// refusedAfterDrain is why a change that is refused now is refused after a drain as well: leases that are not those of jobs of Slurm are in
// its way. nil: there is none. A GPU that a job may use as well, or a process of no lease, is no such reason.
func (a *app) refusedAfterDrain(ctx context.Context, refused *api.Error) error {
	s, err := a.client.Status(ctx)
	if err != nil {
		return err
	}
	remains := func(lease string) bool {
		i := slices.IndexFunc(s.Leases, func(l api.Lease) bool { return l.ID == lease })
		return i >= 0 && (s.Leases[i].Engine == nil || !strings.HasPrefix(s.Leases[i].Engine.Key, api.OwnerSlurm+":"))
	}
	var left []string
	for i := range refused.Leases {
		if remains(refused.Leases[i].Lease) {
			left = append(left, refused.Leases[i].String())
		}
	}
	may := map[string]bool{} // GPUs that jobs may use
	for i := range refused.InUseBy {
		may[refused.InUseBy[i].GPU] = may[refused.InUseBy[i].GPU] || !remains(refused.InUseBy[i].Lease)
	}
	for i := range refused.InUseBy {
		if u := &refused.InUseBy[i]; !may[u.GPU] {
			left = append(left, u.Lease+" uses "+u.GPU)
		}
	}
	if len(left) == 0 {
		return nil
	}
	out := *refused
	out.Message = fmt.Sprintf(
		"cannot drain the node: leases of no job of Slurm are in the way of this change, so that it is refused after the drain as well: %s",
		strings.Join(slices.Compact(left), "; "),
	)
	out.Hint = "nothing was changed; wait until they end, or 'gpushare lease stop LEASE' ends one"
	return &out
}

// untilHangup is a context that also ends when the terminal or the connection of the command does: the node would stay drained. A write
// to a closed output ends no command that has a node to resume. A hangup that was ignored, as by nohup, stays ignored.
func untilHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	outputs := make(chan os.Signal, 1)
	signal.Notify(outputs, syscall.SIGPIPE)
	stop := context.CancelFunc(func() {})
	if !signal.Ignored(syscall.SIGHUP) {
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	return ctx, func() {
		stop()
		signal.Stop(outputs)
	}
}

// slurmDrain is a node that is drained in Slurm for a change.
type slurmDrain struct {
	*app
	draining
	reason  string // that this command sets: a node with another one was drained by another command, and stays drained
	foreign string // the reason of a node that was drained before
	set     bool   // slurmctld was asked to drain the node
}

// undoTimeout limits the undo, also after the command was interrupted.
const undoTimeout = 2 * slurmTimeout

func (d *slurmDrain) sayf(format string, args ...any) {
	fmt.Fprintln(d.io.Err, printable(fmt.Sprintf(format, args...)))
}

// refusedDrain is why the node is not drained.
func (d *slurmDrain) refusedDrain(err error) error {
	return &api.Error{
		Kind:    api.KindUnavailable,
		Message: fmt.Sprintf("cannot drain %s in Slurm: %v", d.node, err),
		Hint:    "nothing was changed; 'scontrol show node " + d.node + "' shows it",
	}
}

// refusedOut is why a node is not drained that is out of service for another reason: its resumption would end that as well.
func (d *slurmDrain) refusedOut(node *slurm.Node) error {
	err := &api.Error{
		Kind:    api.KindUnavailable,
		Message: fmt.Sprintf("cannot drain %s in Slurm: it is %s (%s)", d.node, node.State(), node.Reason),
	}
	err.Hint = fmt.Sprintf("nothing was changed; 'scontrol show node %s' shows it; without --drain %s", d.node, saysDrained)
	return err
}

// begin drains the node, unless it is drained already.
func (d *slurmDrain) begin(ctx context.Context) error {
	node, err := d.slurmNode(ctx, &d.draining)
	if err != nil {
		return d.refusedDrain(err)
	}
	if len(node.OutOfService()) > 0 {
		return d.refusedOut(node)
	}
	if node.Drained() {
		d.foreign = node.Reason
		d.sayf("%s is drained in Slurm already (%s): it stays drained", d.node, d.foreign)
		return nil
	}
	d.set = true
	if out, err := d.slurmProgram(ctx, "scontrol", "update", "nodename="+d.node, "state=drain", "reason="+d.reason); err != nil {
		return d.refusedDrain(withOutput(err, out))
	}
	// What another command set at the same time is seen here.
	if node, err = d.slurmNode(ctx, &d.draining); err != nil {
		return d.refusedDrain(err)
	}
	if !node.Drained() || node.Reason != d.reason || len(node.OutOfService()) > 0 {
		return d.refusedDrain(fmt.Errorf("it is %s (%s) afterwards", node.State(), node.Reason))
	}
	d.sayf("%s is drained in Slurm (%s)", d.node, d.reason)
	return nil
}

// withOutput adds what a program said to why it failed.
func withOutput(err error, out string) error {
	if out = strings.TrimSpace(out); out == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, out)
}

// The pauses between two readings of the node while its jobs run.
const (
	firstDrainPause = 250 * time.Millisecond
	mostDrainPause  = 10 * time.Second
)

// wait waits until the node has no job. A slurmctld that does not answer meanwhile is asked again. The limit is that of the jobs: a reading
// that began before it is waited for, so that at its end there is one to report.
func (d *slurmDrain) wait(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, d.timeout())
	defer cancel()
	said := ""
	for pause := firstDrainPause; ; pause = min(2*pause, mostDrainPause) {
		node, err := d.slurmNode(ctx, &d.draining)
		now := ""
		switch {
		case err != nil:
			now = "whether they have ended is not known: " + err.Error()
		case len(node.OutOfService()) > 0:
			return d.refusedOut(node)
		case !node.Drained():
			return d.refusedDrain(errors.New("another command has resumed it: it is " + node.State()))
		case !node.Busy():
			return nil
		default:
			now = node.State() + d.jobs(ctx)
		}
		if now != said && ctx.Err() == nil {
			said = now
			d.sayf("waiting for the jobs of %s, up to %s: %s", d.node, api.Duration(d.timeout()), now)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-limited.Done():
			timer.Stop()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &api.Error{
				Kind:    api.KindInUse,
				Message: fmt.Sprintf("its jobs did not end within %s: %s", api.Duration(d.timeout()), said),
				Hint:    fmt.Sprintf("nothing was changed; 'squeue -w %s' shows them; --drain-timeout waits longer", d.node),
			}
		}
	}
}

// jobs names the jobs that run on the node, if Slurm says which.
func (d *slurmDrain) jobs(ctx context.Context) string {
	out, err := d.slurmProgram(ctx, "squeue", "-h", "-w", d.node, "-o", "%A")
	if err != nil || strings.TrimSpace(out) == "" {
		return ""
	}
	return ", jobs " + strings.Join(strings.Fields(out), " ")
}

// resume takes the node back into service, if this command drained it and no other has set another reason since.
func (d *slurmDrain) resume(ctx context.Context) error {
	if !d.set {
		return nil
	}
	// Also for a command that was interrupted.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	by := fmt.Sprintf("'scontrol update nodename=%s state=resume' resumes it", d.node)
	failed := func(err error) error {
		return &api.Error{
			Kind: api.KindDegraded, Message: fmt.Sprintf("%s may still be drained in Slurm: %v", d.node, err),
			Hint: fmt.Sprintf("%s, if its reason is %s", by, d.reason),
		}
	}
	node, err := d.slurmNode(ctx, &d.draining)
	switch {
	case err != nil:
		return failed(err)
	case len(node.OutOfService()) > 0:
		d.sayf("%s stays as it is: it is %s (%s) by now; %s", d.node, node.State(), node.Reason, by)
		return nil
	case node.Reason != d.reason && node.Drained():
		d.sayf("%s stays drained: its reason is %s by now", d.node, node.Reason)
		return nil
	case node.Reason != d.reason || !node.Drained():
		return nil // It was never drained, or is resumed already.
	}
	if out, err := d.slurmProgram(ctx, "scontrol", "update", "nodename="+d.node, "state=resume"); err != nil {
		return failed(withOutput(err, out))
	}
	d.sayf("%s is resumed in Slurm", d.node)
	return nil
}

// undo takes back what begin did, after a failure. The error stays the first one.
func (d *slurmDrain) undo(ctx context.Context, err error) error {
	if more := d.resume(ctx); more != nil {
		d.warnLeft(more)
	}
	return err
}

func (d *slurmDrain) warnLeft(err error) {
	d.sayf("warning: %v", err)
	if e, ok := errors.AsType[*api.Error](err); ok {
		d.sayf("  %s", e.Hint)
	}
}

// end takes the node back into service after the change, if Slurm knows the GPUs as they are then. Otherwise jobs would get what is not
// there any more, so it stays drained until gres.conf is written. A change that failed may still be carried out, also by the next daemon,
// unless it was refused (accepted: it may not have been).
func (d *slurmDrain) end(ctx context.Context, err error, accepted bool) error {
	var degraded *exitError
	switch {
	case err != nil && !accepted:
		return d.undo(ctx, err)
	case errors.As(err, &degraded) && degraded.code == api.ExitDegraded:
		d.leave("the change is not whole")
		return err
	case err != nil:
		d.leave("the change may still be carried out, 'gpushare operation list' and 'gpushare status' show it")
		return err
	case !d.set:
		return nil
	}
	if why := d.differs(ctx); why != "" {
		return &exitError{code: api.ExitDegraded, err: &api.Error{
			Kind:    api.KindDegraded,
			Message: fmt.Sprintf("the spec is in force, and %s stays drained in Slurm: %s", d.node, why),
			Hint: fmt.Sprintf(
				"write gres.conf and Gres= again ('gpushare slurm gres --node %[1]s'), restart slurmd, then 'gpushare slurm check --node %[1]s' and "+
					"'scontrol update nodename=%[1]s state=resume'",
				d.node,
			),
		}}
	}
	return d.resume(ctx)
}

func (d *slurmDrain) leave(why string) {
	if d.set {
		d.sayf(
			"%[1]s stays drained in Slurm: %[2]s; when that has ended, 'gpushare slurm check --node %[1]s', then "+
				"'scontrol update nodename=%[1]s state=resume' resumes it",
			d.node,
			why,
		)
	}
}

// differs is how what slurmd knows differs from the GPUs as they are, or why that is not known; empty: it does not.
func (d *slurmDrain) differs(ctx context.Context) string {
	want, err := d.gresOf(ctx, &slurmFlags{node: d.node})
	if err != nil {
		return err.Error()
	}
	have, err := d.slurmdKnows(ctx, want.Node, true)
	if err != nil {
		return "what slurmd knows: " + err.Error()
	}
	found := slurm.Compare(want, have, nil)
	if len(found) == 0 {
		return ""
	}
	why := found[0].Message
	if len(found) > 1 {
		why += fmt.Sprintf(" (and %d more differences)", len(found)-1)
	}
	return why
}
