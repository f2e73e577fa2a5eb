package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/lease"
)

// resultTimeout bounds the query of a command's result.
const resultTimeout = 5 * time.Second

// pendingPrograms are the programs of leases that are about to be isolated. They are not part of a lease: an
// environment may have secrets and is not written to disk.
type pendingPrograms struct {
	mu  locks.Mutex[locks.Leaf] // guards all
	all map[string]*launch.Program
}

func (p *pendingPrograms) put(id string, program *launch.Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[string]*launch.Program{}
	}
	p.all[id] = program
}

func (p *pendingPrograms) take(id string) *launch.Program {
	p.mu.Lock()
	defer p.mu.Unlock()
	program := p.all[id]
	delete(p.all, id)
	return program
}

// programOf returns the program to start, with the credentials of the caller as the kernel reports them.
func programOf(q *api.LeaseRequest, c *server.Caller) (*launch.Program, error) {
	p := &launch.Program{Path: q.Detach.Path, Argv: q.Command, Env: q.Detach.Environment, Dir: q.Detach.Dir, UMask: q.Detach.UMask}
	if err := p.Check(); err != nil {
		return nil, &api.Error{Kind: api.KindInvalid, Message: err.Error()}
	}
	var err error
	if p.Credentials, err = launch.CredentialsOf(launch.Process(c.Process)); err != nil {
		return nil, &api.Error{Kind: api.KindDenied, Message: err.Error(), Hint: "run it where the daemon runs, not inside a container"}
	}
	p.Credentials.UID, p.Credentials.GID, p.Credentials.Groups = c.UID, c.GID, c.Groups
	return p, nil
}

// startProgram starts the command of a detached lease, isolated, and returns when it runs.
func (ls *Leases) startProgram(
	ctx context.Context, l *lease.Lease, s cgroup.Scope, p *launch.Program, result *lease.IsolationResult, isolated bool,
) (cgroup.ScopeState, error) {
	state, w, err := ls.Detached.Programs.Start(ctx, s, isolated, outputOf(ls.detachedOf(l.UID)))
	if err != nil {
		return cgroup.ScopeState{}, err
	}
	defer w.Close()
	if isolated { // If the start fails its process ends, and so does the record.
		if _, err := ls.Escapes.Record(l.ID, w.Process.PID); err != nil {
			return cgroup.ScopeState{}, err
		}
	}
	if err := ls.Memory.Begin(ctx, l, state.Path); err != nil {
		return cgroup.ScopeState{}, err
	}
	p.Env = (&api.Environment{Environment: result.Environment, Unset: result.Unset}).Over(p.Env)
	if err := runProgram(ctx, w, p); err != nil {
		return cgroup.ScopeState{}, err
	}
	if w.Warning != "" {
		result.Warnings = append(result.Warnings, w.Warning)
	}
	result.Process = lease.Process(w.Process)
	return state, nil
}

// programTimeout bounds the change into the directory of a program and its execution. Both are on file systems of the user, which may never
// answer.
const programTimeout = 10 * time.Second

// runProgram sends the program to its process, and returns when it runs. The process is the user's by then, and in the lease: if it
// does not get on, it is killed with the lease.
func runProgram(ctx context.Context, w *launch.Pending, p *launch.Program) error {
	bounded, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	err := w.Start(bounded, p)
	if bounded.Err() == nil || !errors.Is(err, bounded.Err()) {
		return err
	}
	message := fmt.Sprintf("cannot start %s: it does not run after %s", p.Path, api.Duration(programTimeout))
	if wait := stop.WaitOf(w.Process.PID); wait != "" {
		message += ": it waits in " + wait
	}
	return &launch.Failure{Code: launch.ExitCannot, Message: message, Hint: fmt.Sprintf("see whether 'ls %s %s' returns", p.Dir, p.Path)}
}

// recordResult reads the result of the command, immediately before its lease ends.
func (ls *Leases) recordResult(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, resultTimeout)
	defer cancel()
	r, err := ls.Detached.Programs.Result(ctx, id)
	switch {
	case err == nil:
		ls.Ended.result(id, r)
	case !errors.Is(err, launch.ErrUnknown):
		ls.Log.Warn("cannot read the result of a command", "lease", id, "error", err)
	}
}

// findProgram finds the process of a detached lease after a restart.
func (ls *Leases) findProgram(ctx context.Context, l *lease.Lease) {
	p, err := ls.Detached.Programs.Main(ctx, l.ID)
	if err == nil && p.PID != 0 {
		l.Process = p
	}
}

// endText returns the text of the event for the end of a lease: how its command ended, or the text otherwise if that is not known.
func (ls *Leases) endText(id, otherwise string) string {
	if e, ok := ls.Ended.get(id); ok && e.Result != nil {
		return "the command " + e.Result.String()
	}
	return otherwise
}

// maxLines is how many last lines a reader can ask for: each takes memory while they are searched.
const maxLines = 10_000

// GetLogs copies the output of a detached command.
func (ls *Leases) GetLogs(c *server.Call) error {
	id := c.R.PathValue("id")
	l, live := ls.Table.Get(id)
	if !live {
		e, ok := ls.Ended.get(id)
		if !ok {
			return ls.noLogs(id)
		}
		l = e.Lease
	}
	may := func(now *server.Caller) error { return ls.mayReadOutput(now, &l) }
	if err := may(c.Caller); err != nil {
		return err
	}
	if l.Origin != lease.OriginDetached {
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "there is no output of lease " + id + " here: its command prints to where it was started",
			Hint:    "the output of 'gpushare run --detach' is kept",
		}
	}
	lines := -1
	if s := c.Text("lines"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > maxLines {
			return &api.Error{
				Kind:    api.KindInvalid,
				Message: fmt.Sprintf("cannot show %.64q lines: write a number from 0 to %d", s, maxLines),
				Hint:    "without a number all output is shown",
			}
		}
		lines = n
	}
	reading, stop := c.While(may)
	defer stop()
	var ended chan struct{}
	if c.Flag("follow") {
		ended = make(chan struct{})
		ctx, cancel := context.WithCancel(reading)
		defer func() {
			cancel()
			<-ended
		}()
		go func() { // ends with the lease or with this call, which waits for it
			defer close(ended)
			ls.awaitEnded(ctx, &l)
		}()
	}
	c.W.Header().Set("Content-Type", "text/plain; charset=utf-8")
	err := ls.Detached.Outputs.Output(
		reading, &l, lines, ended, &flushing{c.W, func() error { return cmp.Or(server.Lost(reading), may(c.Now())) }},
	)
	if lost := cmp.Or(server.Lost(reading), may(c.Now())); lost != nil {
		c.SendLost(lost)
		return nil
	}
	if errors.Is(err, launch.ErrUnknown) {
		return nil // It printed nothing, or its output was dropped.
	}
	if err != nil && c.Ctx().Err() == nil {
		ls.Log.Warn("cannot copy a lease's output", "lease", id, "error", err)
		panic(http.ErrAbortHandler) // The output is not complete: the reader must see that.
	}
	return nil
}

// mayReadOutput returns why a caller may not read the output of a lease. Its user always may.
func (ls *Leases) mayReadOutput(c *server.Caller, l *lease.Lease) error {
	switch {
	case c.Admin || c.UID == l.UID:
		return nil
	case !c.IsMember(l.Terms.Tenant):
		return ls.noLogs(l.ID)
	}
	return &api.Error{
		Kind:    api.KindDenied,
		Message: fmt.Sprintf("%s may not read the output of lease %s of user %s", c.Name, l.ID, l.User),
		Hint:    "its user or an administrator may",
	}
}

func (ls *Leases) noLogs(id string) error {
	return &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("there is no lease %q whose output you may read", id),
		Hint:    "see 'gpushare lease list --all'",
	}
}

// awaitEnded waits until the lease has ended.
func (ls *Leases) awaitEnded(ctx context.Context, l *lease.Lease) {
	for {
		next := ls.LeaseChanges.Next()
		if now, ok := ls.Table.Get(l.ID); !ok || now.Generation != l.Generation {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// flushing writes each part at once.
type flushing struct {
	w   http.ResponseWriter
	may func() error // whether the reader still may
}

// Write writes and flushes.
func (f *flushing) Write(b []byte) (int, error) {
	if err := f.may(); err != nil {
		return 0, err
	}
	server.StartPart(f.w)
	n, err := f.w.Write(b)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// mostNames is how many GPUs a request may name.
const mostNames = 64

// decodeRequest reads the body of POST /v1/leases.
func decodeRequest(c *server.Call) (*api.LeaseRequest, error) {
	q, err := server.Decode[api.LeaseRequest](c)
	if err != nil {
		return nil, err
	}
	switch {
	case len(q.Command) == 0:
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot start a lease: the request names no command"}
	case len(q.Key) > 64:
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot use a key of more than 64 bytes"}
	}
	return q, placeable("start", q.GPUs, q.MaxTime)
}

// placeable refuses what no lease can have, however it begins: what is its verb.
func placeable(what string, gpus []string, limit *api.Duration) error {
	switch {
	case limit != nil && *limit <= 0:
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "cannot " + what + " a lease for a max_time of 0",
			Hint:    "leave it out: then the lease has the time of its grant",
		}
	case len(gpus) > mostNames:
		return &api.Error{Kind: api.KindInvalid, Message: fmt.Sprintf("cannot place a lease on more than %d named GPUs", mostNames)}
	}
	return nil
}
