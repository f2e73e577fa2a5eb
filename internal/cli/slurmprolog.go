package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/slurm"
)

// Limits of the scripts of Slurm: slurmctld keeps a job waiting for its Prolog, and the node for its Epilog.
const (
	prologTimeout = 2 * time.Second  // for each command and each request, GPUSHARE_PROLOG_SECONDS says otherwise
	mostProlog    = 10 * time.Minute // what it may say
	prologWaits   = 4                // of these at most, together
	// A Prolog of the site may run after this one: a lease that ended before the job started would end its key too. The Epilog releases it.
	slurmBind = api.Duration(6 * time.Hour)
)

// prologLimit is for how long a script of Slurm waits for one command.
func (a *app) prologLimit() time.Duration {
	n, err := strconv.Atoi(a.getenv("GPUSHARE_PROLOG_SECONDS"))
	if err != nil || n < 1 || n > int(mostProlog/time.Second) {
		return prologTimeout
	}
	return time.Duration(n) * time.Second
}

func (a *app) slurmPrologCommand() *cobra.Command {
	var t slurm.Terms
	c := &cobra.Command{
		Use:   "prolog [flags]",
		Short: "Give a job of Slurm its lease, as Slurm's Prolog",
		Args:  noArgs,
		Long: `Prolog is what the Prolog of Slurm runs: 'gpushare slurm install' writes it. It reads the job from the
environment that Slurm gives a Prolog, finds its GPUs by the order in which slurmd counts them ('slurmd -G'),
and requests one keyed lease, slurm:CLUSTER:JOB:RESTART, for the cgroup of the job: as much GPU memory as it
has shards of 1 GiB, its MIG instance, or its whole GPUs, if a grant of the tenant is of them. Of a shared GPU
it has what --gpu-memory and --gpu-share of the SPANK plug-in say, and never more than its shards. If the amount
cannot be read from what the job requests, it is 1 GiB; a request that is refused with options is made without.

A job without a lease runs; why it has none is in the journal (gpushare-prolog) and in its output, if
Slurm's TaskProlog is that of gpushare. The exit code is 0, also when Slurm or gpushared does not answer: another
code drains the node. It is 6 if a GPU of the job is unusable. Each command is given 2 s
(GPUSHARE_PROLOG_SECONDS), all together four times that.`,
		Example: "  gpushare slurm prolog\n  gpushare slurm prolog --tenant slurm --grant jobs",
		RunE: func(cmd *cobra.Command, _ []string) error {
			// With RunInJob the SIGTERM with which Slurm ends a job is for its Prolog too: it ends as it would.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), prologWaits*a.prologLimit())
			defer cancel()
			return a.slurmProlog(ctx, t)
		},
	}
	c.Flags().StringVarP(&t.Tenant, "tenant", "t", "slurm", "the tenant whose grants jobs have leases of")
	c.Flags().StringVar(&t.Grant, "grant", "", "the grant (default: the one that fits what the job has)")
	a.completeFlag(c, "tenant", func(s *api.Status) []string { return tenantsOf(s) })
	a.completeFlag(c, "grant", func(s *api.Status) []string { return grantsOf(s, t.Tenant) })
	return c
}

// slurmProlog gives the job its lease. The error is that of a GPU that is unusable.
func (a *app) slurmProlog(ctx context.Context, t slurm.Terms) error {
	job, err := slurm.JobOf(a.getenv)
	if err != nil {
		a.toJournal("gpushare-prolog", err.Error())
		return nil
	}
	if job.GPUs == "" {
		return nil
	}
	note, err := a.leaseOfJob(ctx, job, t)
	unusable := new(unusableGPU)
	switch {
	case errors.As(err, &unusable):
		a.toJournal("gpushare-prolog", fmt.Sprintf("job %d: %v", job.ID, unusable))
		return &exitError{code: api.ExitDegraded, err: unusable}
	case errors.Is(err, slurm.ErrNoGrant):
		a.toJournal("gpushare-prolog", fmt.Sprintf("job %d has no lease: %v", job.ID, err))
	case err != nil:
		a.toJournal("gpushare-prolog", fmt.Sprintf("job %d has no lease: %v", job.ID, err))
		note.Refused = err.Error()
	}
	note.Run = strconv.FormatUint(job.Restart, 10)
	if err := a.writeNote(job, note); err != nil {
		a.toJournal("gpushare-prolog", fmt.Sprintf("job %d: its tasks do not read which GPUs it has: %v", job.ID, err))
	}
	return nil
}

// unusableGPU is a GPU of the job that no job can use.
type unusableGPU struct{ why string }

func (u *unusableGPU) Error() string { return u.why }

// leaseOfJob requests the lease of a job. The note is what its tasks read, also when it has none.
func (a *app) leaseOfJob(ctx context.Context, job *slurm.Job, t slurm.Terms) (*slurm.Note, error) {
	note := new(slurm.Note)
	limit := a.prologLimit()
	report, err := a.slurmdCounts(ctx, limit, job.Node)
	if err != nil {
		return note, err
	}
	status, err := a.statusWithin(ctx, limit)
	if err != nil {
		return note, err
	}
	places, err := slurm.Places(job.GPUs, report, status)
	if err != nil {
		return note, err
	}
	note = slurm.NoteOf(places, nil)
	for i := range places {
		if places[i].Unusable != "" {
			return note, &unusableGPU{places[i].Unusable}
		}
	}
	shards, notice, err := a.shardsOf(ctx, limit, job, places)
	if err != nil {
		return note, err
	}
	request, err := job.Request(places, shards, t, status)
	if err != nil {
		return note, err
	}
	plain := request
	var most *api.Percent
	if places[0].Shared && slurm.HasShare(a.getenv) {
		most = slurm.MostShare(a.specWithin(ctx, limit), status, t, places[0].GPU, request.GPUMemory)
	}
	for _, line := range slurm.TakeOptions(&request, places[0].Shared, most, a.getenv) {
		a.toJournal("gpushare-prolog", fmt.Sprintf("job %d: %s", job.ID, line))
	}
	own, err := procfs.Cgroup(os.Getpid())
	if err != nil {
		return note, err
	}
	if request.Cgroup, err = job.Cgroup(own, cgroupExists()); err != nil {
		return note, err
	}
	plain.Cgroup = request.Cgroup
	granted, err := a.attachJob(ctx, limit, request, plain)
	if err != nil {
		return note, err
	}
	note = slurm.NoteOf(places, granted)
	note.Notice = notice
	return note, nil
}

// shardsOf is how many shards a job has on a shared GPU. One whose amount cannot be read has the least: a user chooses the form of the
// request, and would choose one without a limit. notice says so.
func (a *app) shardsOf(
	ctx context.Context,
	limit time.Duration,
	job *slurm.Job,
	places []slurm.Place,
) (n uint64, notice string, err error) {
	if !places[0].Shared {
		return 0, "", nil
	}
	text, err := a.slurmProgramWithin(ctx, limit, "squeue", "-h", "-j", strconv.FormatUint(job.ID, 10), "-O", slurm.RequestFields)
	if err != nil {
		return 0, "", err
	}
	n, err = job.Shards(text)
	if amount, ok := errors.AsType[*slurm.AmountError](err); ok {
		notice = fmt.Sprintf("this job has %d GiB of GPU memory: %v", slurm.LeastShards, amount)
		a.toJournal("gpushare-prolog", fmt.Sprintf("job %d: %s", job.ID, notice))
		return slurm.LeastShards, notice, nil
	}
	return n, "", err
}

// slurmdCounts is what slurmd makes of its files: the order in which it counts GPUs.
func (a *app) slurmdCounts(ctx context.Context, limit time.Duration, node string) (*slurm.Report, error) {
	queries := [][]string{{"-N", node, "-G"}, {"-G"}} // Not every build of slurmd takes a name.
	if !slurm.NodeName(node) {
		queries = queries[1:]
	}
	var last error
	for _, q := range queries {
		text, err := a.slurmProgramWithin(ctx, limit, "slurmd", q...)
		if report := slurm.ParseReport(text); report.Comparable() {
			return &report, nil
		}
		last = err
	}
	return nil, fmt.Errorf("cannot read how slurmd counts the GPUs: %s", why(last, "'slurmd -G' names no GPU"))
}

// again makes a request of gpushared within the limit, and once more if it does not answer: an answer is lost if it ends meanwhile, and the
// socket keeps a request until it runs again. What it refuses is not requested again.
func again[T any](ctx context.Context, limit time.Duration, request func(context.Context) (T, error)) (answer T, err error) {
	for range 2 {
		attempt, cancel := context.WithTimeout(ctx, limit)
		answer, err = request(attempt)
		cancel()
		if refused, ok := errors.AsType[*api.Error](err); err == nil || ok && refused.Kind != api.KindUnavailable {
			break
		}
	}
	return answer, err
}

// statusWithin reads the status.
func (a *app) statusWithin(ctx context.Context, limit time.Duration) (*api.Status, error) {
	return again(ctx, limit, a.client.Status)
}

// specWithin reads the spec with its defaults; nil: it is not known.
func (a *app) specWithin(ctx context.Context, limit time.Duration) *api.Spec {
	document, err := again(ctx, limit, a.client.Spec)
	if err != nil || document.Spec == nil {
		return nil
	}
	document.Spec.Normalize()
	return document.Spec
}

// attachJob registers the lease. The same key is the same lease, so a second request does no harm. plain is the request without the options
// of the user: it is made if the other is refused, so that no option leaves a job without a lease, which is without a limit.
func (a *app) attachJob(ctx context.Context, limit time.Duration, q, plain api.EngineRequest) (*api.LeaseGrant, error) {
	bind := slurmBind
	q.BindTimeout, plain.BindTimeout = &bind, &bind
	granted, err := again(ctx, limit, func(ctx context.Context) (*api.LeaseGrant, error) { return a.client.AttachEngine(ctx, q) })
	refused, ok := errors.AsType[*api.Error](err)
	if !ok || refused.Kind == api.KindUnavailable || q.GPUMemory == plain.GPUMemory && q.Share == plain.Share {
		return granted, err
	}
	a.toJournal("gpushare-prolog", fmt.Sprintf("%s is requested without its options: with them it is refused: %v", q.Key, err))
	return again(ctx, limit, func(ctx context.Context) (*api.LeaseGrant, error) { return a.client.AttachEngine(ctx, plain) })
}

// cgroupExists reports whether a cgroup of version 2 is there.
func cgroupExists() func(string) bool {
	mount := ""
	err := procfs.WalkMounts(os.Getpid(), func(m procfs.Mount) {
		if m.Type == "cgroup2" && mount == "" {
			mount = m.Point
		}
	})
	return func(path string) bool {
		if err != nil || mount == "" {
			return false
		}
		info, err := os.Stat(filepath.Join(mount, path))
		return err == nil && info.IsDir()
	}
}

// toJournal says something in the journal, as the script of this name. Slurm shows what a Prolog prints to no user.
func (a *app) toJournal(name, text string) {
	ctx, cancel := context.WithTimeout(context.Background(), a.prologLimit()) // Not the caller's: it may have ended.
	defer cancel()
	line := printable(strings.Join(strings.Fields(text), " "))
	if err := a.logger(ctx, name, line); err != nil {
		fmt.Fprintf(a.io.Err, "%s: %s\n", name, line)
	}
}

func (a *app) logger(ctx context.Context, name, line string) error {
	_, err := a.slurmProgramWithin(ctx, a.prologLimit(), "logger", "-t", name, "--", line)
	return err
}
