package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) leaseCommand() *cobra.Command {
	return group("lease", "Leases: the running uses of grants",
		a.leaseList(),
		a.leaseShow(),
		a.leaseAttach(),
		a.leaseRelease(),
		a.leaseLogs(),
		a.leaseStop())
}

func (a *app) leaseList() *cobra.Command {
	var all bool
	var since string
	var o view
	c := &cobra.Command{
		Use:     "list",
		Short:   "List leases",
		Args:    noArgs,
		Example: "  gpushare lease list\n  gpushare lease list --all\n  gpushare lease list --since 1d\n  gpushare lease list --mine --sort idle\n  gpushare lease list -o name",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(a.json); err != nil {
				return err
			}
			s, err := a.leasesOf(cmd, all, since)
			if err == nil && since != "" && (o.gpu != "" || o.tenant != "") {
				err = a.addNode(cmd.Context(), s)
			}
			if err == nil {
				err = a.selectPart(cmd.Context(), s, &o)
			}
			switch {
			case err != nil:
				return err
			case a.json || o.output == "json":
				return a.printJSON(api.LeaseList{SchemaVersion: 1, Leases: s.Leases})
			case o.output == "name":
				a.leaseNames(s.Leases)
			case len(s.Leases) == 0:
				fmt.Fprintln(a.io.Out, "no leases")
			case since != "":
				a.history(s.Leases, o.width(a.io.Out))
			default:
				a.statusLeases(s, o.width(a.io.Out), o.output == "wide", true)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "include leases that ended since the last boot, within a day")
	c.Flags().StringVar(
		&since, "since", "", "include leases that ended since then, from the account: 1m to 435d ago, as in 36h or 7d, or a date (UTC) as in 2026-02-01",
	)
	c.MarkFlagsMutuallyExclusive("all", "since")
	a.viewFlags(c, &o)
	return c
}

// addNode adds the GPUs and tenants that the node has now to leases of the account: a GPU is found by its index, and a tenant that had no
// lease is no unknown one.
func (a *app) addNode(ctx context.Context, s *api.Status) error {
	node, err := a.client.Status(ctx)
	if denied(err) { // A user who is a member of no tenant any more still has their own leases.
		return nil
	}
	if err == nil {
		s.GPUs, s.Tenants = node.GPUs, node.Tenants
	}
	return err
}

// leasesOf reads the live leases, with all or since also those that ended. Only without since the rest of the status is read.
func (a *app) leasesOf(cmd *cobra.Command, all bool, since string) (*api.Status, error) {
	if since != "" {
		leases, err := a.client.LeasesSince(cmd.Context(), since)
		return &api.Status{Leases: leases}, err
	}
	s, err := a.client.Status(cmd.Context())
	if denied(err) { // A user who is a member of no tenant any more still has their own leases.
		s, err = &api.Status{}, nil
		if !all {
			s.Leases, err = a.client.Leases(cmd.Context(), false)
		}
	}
	if err == nil && all {
		s.Leases, err = a.client.Leases(cmd.Context(), true)
	}
	return s, err
}

// history prints when leases ran and how they ended.
func (a *app) history(leases []api.Lease, width int) {
	columns := []column{
		{head: "LEASE", min: 12, want: 24, middle: true},
		{head: "STATE", drop: 4},
		{head: "TENANT", min: 6, drop: 3},
		{head: "USER", min: 5},
		{head: "STARTED", drop: 5},
		{head: "ELAPSED"},
		{head: "EXIT"},
		{head: "PEAK", drop: 2},
		{head: "COMMAND", min: 8, drop: 1},
	}
	var rows []line
	for i := range leases {
		l := &leases[i]
		started, elapsed, exit, peak, why := "-", "-", "-", "-", l.Waiting
		if l.Started != nil {
			started = l.Started.Local().Format(time.DateTime)
		}
		switch {
		case l.ElapsedSeconds != nil:
			elapsed = api.Duration(time.Duration(*l.ElapsedSeconds) * time.Millisecond).String()
		case l.Started != nil && l.Ended == nil:
			elapsed = text.Age(now().Sub(*l.Started)) // It runs.
		}
		if l.ExitCode != nil {
			exit = fmt.Sprint(*l.ExitCode)
		}
		if l.GPUMemory != nil && l.GPUMemory.Peak != nil {
			peak = gib(*l.GPUMemory.Peak)
		}
		if l.Ended != nil {
			why = l.Reason
		}
		rows = append(rows, line{
			[]string{l.ID, l.State, l.Tenant, dash(l.User), started, elapsed, exit, peak, command(l.Command)}, why,
		})
	}
	a.fit(width, columns, rows)
}

func (a *app) leaseLogs() *cobra.Command {
	var follow, raw bool
	var lines int
	c := &cobra.Command{
		Use: "logs [-f] ID", Short: "Show the output of a detached lease", Args: exactArgs(1, "the id of a lease"),
		Long: `Logs shows the output of a lease that was started with 'gpushare run --detach', and its
notices. The user of the lease and administrators may read it, as long as 'gpushare lease
list --all' shows the lease. With systemd the output is in the journal; otherwise the
last 8 MiB are kept. On a terminal control characters of the output are shown, and not obeyed.`,
		Example:           "  gpushare lease logs vision-train-x7k2\n  gpushare lease logs -f --lines 20 vision-train-x7k2",
		ValidArgsFunction: a.completeFirst(detachedOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			read := args[0]
			to := a.io.Out
			if !raw && isTerminal(a.io.Out) {
				to = &text.Visible{To: a.io.Out}
			}
			err := a.withLease(cmd.Context(), args[0], true, func(id string) error {
				read = id
				return a.client.Logs(cmd.Context(), id, lines, follow, to)
			})
			if follow && errors.Is(err, context.Canceled) {
				return &interruptedError{hint: "the lease continues: 'gpushare lease stop " + read + "' ends it"}
			}
			return err
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "follow until the lease ends")
	c.Flags().BoolVar(&raw, "raw", false, "on a terminal, too, write the output as the program did")
	c.Flags().IntVarP(&lines, "lines", "n", -1, "show only this many last lines; -1 is all")
	return c
}

// longAgo is how far back 'lease show' looks for a lease: about as long as the account has leases.
const longAgo = "36d"

func (a *app) leaseShow() *cobra.Command {
	var key string
	c := &cobra.Command{
		Use:               "show (ID | --key KEY)",
		Short:             "Show one lease: what it may use, what it uses, what is enforced",
		Args:              idOrKey(&key),
		ValidArgsFunction: a.completeFirst(leasesOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key != "" {
				return a.showKey(cmd, key)
			}
			l, s, err := a.findLease(cmd, args[0])
			if err != nil {
				return err
			}
			return a.showLease(l, s)
		},
	}
	c.Flags().StringVar(&key, "key", "", "the lease that an engine attached with this key")
	return c
}

// showKey shows the lease of a key. What is measured of it is in the status.
func (a *app) showKey(cmd *cobra.Command, key string) error {
	l, err := a.client.EngineLease(cmd.Context(), key)
	if err != nil {
		return err
	}
	s := &api.Status{}
	if full, of, err := a.findLease(cmd, l.ID); err == nil && full.Generation == l.Generation {
		l, s = full, of
	}
	return a.showLease(l, s)
}

// showLease prints one lease, with the names that a status has of its GPUs.
func (a *app) showLease(l *api.Lease, s *api.Status) error {
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int `json:"schema_version"`
			*api.Lease
		}{1, l})
	}
	a.lease(l, namesIn(s))
	return nil
}

// findLease finds one lease: one that is live, one that ended lately, or one that the account has. The status has its GPUs, as far as
// they are known.
func (a *app) findLease(cmd *cobra.Command, name string) (*api.Lease, *api.Status, error) {
	s, err := a.leasesOf(cmd, false, "")
	id := name
	isIt := func(l api.Lease) bool { return l.ID == id }
	if err == nil && !slices.ContainsFunc(s.Leases, isIt) {
		s.Leases, err = a.client.Leases(cmd.Context(), true)
	}
	if err == nil && !slices.ContainsFunc(s.Leases, isIt) {
		s, err = a.leasesOf(cmd, false, longAgo)
	}
	if err != nil {
		return nil, nil, err
	}
	if !slices.ContainsFunc(s.Leases, isIt) {
		if id, err = beginsWith("lease", name, idsOf(s.Leases)); err != nil {
			return nil, nil, err
		}
	}
	if i := slices.IndexFunc(s.Leases, isIt); i >= 0 {
		return &s.Leases[i], s, nil
	}
	return nil, nil, &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("there is no lease %q that you may see", name),
		Hint:    "see 'gpushare lease list'",
	}
}

// lease prints one lease in full. name names a GPU.
func (a *app) lease(l *api.Lease, name func(uuid string) string) {
	row := *l
	row.Reason = "" // It is printed on its own line.
	a.leases([]api.Lease{row})
	fmt.Fprintln(a.io.Out)
	line := func(name, value string) { fmt.Fprintf(a.io.Out, "%-9s  %s\n", name, printable(value)) }
	line("grant", l.Tenant+"/"+l.Grant+" ("+l.Kind+")")
	line("command", strings.Join(l.Command, " "))
	line("devices", dash(strings.Join(l.Devices, " ")))
	leaseEngine(l, line)
	if l.PositionReason != "" {
		line("position", fmt.Sprintf("%d: %s", l.Position, l.PositionReason))
	}
	if l.ExpectedStart != nil {
		line("expected", "to start at "+l.ExpectedStart.Local().Format(time.DateTime)+" at the latest, if leases run to their known ends")
	}
	for i := range l.InUseBy {
		line("in use by", placeUse(&l.InUseBy[i]))
	}
	if l.Started != nil {
		line("started", l.Started.Local().Format(time.DateTime))
	}
	if l.Expires != nil {
		line("expires", l.Expires.Local().Format(time.DateTime)+" ("+timeOf(l)+")")
	}
	if l.Ended != nil {
		line("ended", l.Ended.Local().Format(time.DateTime)+join(", ", l.Result))
	}
	if l.ElapsedSeconds != nil {
		line("elapsed", l.ElapsedSeconds.Fixed()+" s")
	}
	if l.GPUMemory != nil && l.GPUMemory.Peak != nil {
		line("peak", gib(*l.GPUMemory.Peak)+" of GPU memory")
	}
	if m := l.GPUMemory; m != nil && m.Reason != "" {
		line("limit", "of GPU memory, "+m.Backend+": "+m.Reason)
	}
	if l.Share != nil {
		timeSlices(l.Share, line)
	}
	if u := l.Use; u != nil {
		line("use", useText(u))
	}
	if l.IdleSeconds != nil {
		line("idle", "for "+api.Duration(time.Duration(*l.IdleSeconds)*time.Second).String())
	}
	for _, s := range lostGPUs(l, name) {
		line("lost", s)
	}
	for i := range l.XIDs {
		x := &l.XIDs[i]
		line("error", fmt.Sprintf("%s at %s, on %s", x, x.Last.Local().Format(time.DateTime), name(x.GPU)))
	}
	if len(l.FrozenFor) > 0 {
		line("frozen", "for "+strings.Join(l.FrozenFor, " and "))
	}
	if l.Reason != "" {
		line("reason", l.Reason)
	}
	a.leaseIsolation(l, line)
	for _, n := range l.Notices {
		fmt.Fprintf(a.io.Out, "notice: %s\n", printable(n))
	}
}

// timeSlices prints what a lease has of the time of its GPU, and how often it was frozen for others.
func timeSlices(s *api.LeaseShare, line func(name, value string)) {
	if s.Latency != "" {
		line("latency", s.Latency+": it is not frozen while it uses less than its share")
	}
	if text := s.StateText(); text != "" {
		line("share", text)
	}
	if s.Occupancy != nil {
		line("occupancy", percent(*s.Occupancy)+" of the last 10 s: its slices, and the rest of its queue after them")
	}
	if s.Freezes != nil {
		line("freezes", s.Freezes.Text())
	}
}

// leaseIsolation prints what keeps a lease in its place.
func (a *app) leaseIsolation(l *api.Lease, line func(name, value string)) {
	if l.Isolation.Cgroup != "" {
		line("cgroup", l.Isolation.Cgroup)
	}
	if l.Isolation.Unit != "" {
		line("unit", l.Isolation.Unit)
	}
	if l.Isolation.MemoryNodes != "" {
		line("memory", "on NUMA node "+l.Isolation.MemoryNodes)
	}
	for _, m := range l.Isolation.NotEnforced {
		fmt.Fprintf(a.io.Out, "not enforced: %s\n", printable(m))
	}
}

func (a *app) leases(leases []api.Lease) {
	rows := [][]string{{"LEASE", "STATE", "USER", "PID", "DEVICE", "GPU MEMORY", "SHARE", "COMMAND", ""}}
	for i := range leases {
		l := &leases[i]
		state := l.State
		if l.GPUMemory != nil && l.GPUMemory.Stage != "" {
			state += ", " + stage(l.GPUMemory.Stage)
		}
		if len(l.FrozenFor) > 0 && !strings.HasSuffix(state, ", frozen") { // The stage of GPU memory says it too.
			state += ", frozen"
		}
		if l.GPULost() != nil {
			state += ", GPU lost"
		}
		if l.Result != "" {
			state = l.Result
		}
		if l.Position > 0 {
			state = fmt.Sprintf("waiting, position %d", l.Position)
		}
		why := waitText(l)
		if l.Ended != nil {
			why = l.Reason
		}
		on := make([]string, 0, len(l.Devices))
		for _, d := range l.Devices {
			on = append(on, shortUUID(d))
		}
		rows = append(rows, []string{
			l.ID,
			state,
			dash(l.User),
			pid(l.PID),
			dash(strings.Join(on, " ")),
			leaseMemory(l.GPUMemory),
			leaseShare(l.Share),
			command(l.Command),
			why,
		})
	}
	a.table(rows)
}

// waitText is why a lease waits, and until when at the latest, if that is known.
func waitText(l *api.Lease) string {
	if text := emptyText(l); text != "" {
		return text
	}
	if l.ExpectedStart == nil {
		return l.Waiting + join("; no estimate: ", l.StartUnknown)
	}
	at := l.ExpectedStart.Local()
	format := time.DateTime
	if today := now().Local(); at.YearDay() == today.YearDay() && at.Year() == today.Year() {
		format = "15:04"
	}
	return l.Waiting + "; expected to start at " + at.Format(format) + " at the latest"
}

// inUseBy names the leases in the way of a request that waits.
func inUseBy(l *api.Lease) string {
	var uses []string
	for i := range l.InUseBy {
		uses = append(uses, placeUse(&l.InUseBy[i]))
	}
	return join("; in use by ", strings.Join(uses, "; "))
}

// placeUse is a lease in the way of a request.
func placeUse(u *api.PlaceUse) string {
	out := "a lease of another tenant"
	if u.Lease != "" {
		out = u.Lease + " of " + dash(u.User) + " (tenant " + u.Tenant + ")"
	}
	if u.Since != nil {
		out += " since " + atTime(*u.Since, now())
	}
	if u.Until == nil {
		return out + ", no time limit"
	}
	return out + ", until " + atTime(*u.Until, now()) + " at the latest"
}

// timeOf is what ends a lease that expires.
func timeOf(l *api.Lease) string {
	if l.MaxTime != nil {
		return "time " + l.MaxTime.String()
	}
	return "max_time"
}

// join is the separator and the text; empty without a text.
func join(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}

// stage describes the stage of the escalation for GPU memory.
func stage(s string) string {
	switch s {
	case "notice":
		return "near its limit"
	case "over":
		return "over its limit"
	}
	return s
}

func leaseMemory(m *api.LeaseMemory) string {
	switch {
	case m == nil, m.Backend == "": // Of an ended lease only the peak is known.
		return "-"
	case m.Limit == 0:
		return usedMemory(m)
	}
	return usedMemory(m) + " of " + gib(m.Limit) + m.Qualifier()
}

// usedMemory is what a lease uses: "unknown" before the first measurement, and with its time while measurements fail.
func usedMemory(m *api.LeaseMemory) string {
	switch {
	case m.Unknown && m.Used == 0:
		return "unknown"
	case m.Unknown:
		return "at least " + gib(m.Used)
	case m.LastKnown != nil:
		return gib(m.Used) + " at " + m.LastKnown.Local().Format(time.TimeOnly)
	}
	return gib(m.Used)
}

// leaseShare shows what was measured, with its error, then what is due.
func leaseShare(s *api.LeaseShare) string {
	if s == nil {
		return "-"
	}
	due := s.Entitled
	if s.Due != nil {
		due = *s.Due
	}
	out := percent(due)
	if s.Busy != nil && s.StdErr != nil {
		out = fmt.Sprintf("%.0f±%.0f%% of the time, ", *s.Busy, *s.StdErr)
		if s.OfUsed != nil {
			out += percent(*s.OfUsed) + " of what was used, "
		}
		out += "due " + percent(due)
	}
	return out + s.Qualifier()
}

func pid(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// command is the head of a command line, by characters.
func command(argv []string) string {
	const wide = 48
	s := []rune(strings.Join(argv, " "))
	if len(s) > wide {
		s = append(s[:wide-1], '…')
	}
	return string(s)
}

// denied reports whether the daemon refused a request because of the role of the user.
func denied(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Kind == api.KindDenied
}
