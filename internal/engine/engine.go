package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/faultpoint"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// Handler carries out the steps of some kinds.
type Handler interface {
	// Applied reads from the hardware whether the step is done.
	Applied(ctx context.Context, s step.Step) (bool, error)
	// Do carries the step out. It is idempotent, also after it was interrupted.
	Do(ctx context.Context, s step.Step) error
	// Undo undoes the step, also when it is only half done. It is idempotent. A step without undo data is not undone.
	Undo(ctx context.Context, s step.Step) error
}

// Explainer is a handler that says why a step whose call succeeded is not there afterwards. Another program may have undone it since.
type Explainer interface {
	NotThere(s step.Step) string
}

// Handlers finds the handler of each kind of step.
type Handlers map[string]Handler

// Engine carries out changes. Its fields are read-only after the first use; it has no state of its own.
type Engine struct {
	Handlers Handlers
	Log      *slog.Logger                  // nil: nothing is logged
	Now      func() time.Time              // nil: time.Now
	Timeout  func(step.Step) time.Duration // the deadline of one step; nil: a minute
	// Grace is how long the running step may continue when the engine is stopped. 0: ten seconds.
	Grace time.Duration
}

// Hooks are callbacks of a run. The zero value is valid.
type Hooks struct {
	// Progress is called at each change of a step's state and of what it waits for, by one goroutine at a time. It must not block.
	Progress func(Progress)
	// PrepareGrant is called before each step of phase grant: access is granted from what is observed now, not from what was
	// expected when the step was planned. It returns the step to carry out; ok is false to skip it.
	PrepareGrant func(ctx context.Context, s step.Step) (now step.Step, ok bool, err error)
}

// Run carries out a change: first the steps of the node, then all GPUs in parallel, then the node's grant steps. When a step
// fails, the steps of its GPU are undone in reverse order, and the other GPUs continue. When ctx ends, no further step is
// begun and nothing is undone: the record must stay open for Resume.
func (e *Engine) Run(ctx context.Context, r *Record, h Hooks) Outcome {
	if err := e.check(r); err != nil {
		return refused(r, err)
	}
	return e.run(ctx, byGPU(r.Steps), h, nil, false)
}

// Resume continues an interrupted change, in another process and perhaps after a boot, with its recorded authority. Steps
// about hardware of another epoch are dropped and counted in the outcome.
func (e *Engine) Resume(ctx context.Context, r *Record, now store.Epoch, h Hooks) Outcome {
	if err := e.check(r); err != nil {
		return refused(r, err)
	}
	left, dropped := remaining(r, now)
	return e.run(ctx, byGPU(left), h, dropped, true)
}

// Converge carries out steps without authority.
func (e *Engine) Converge(ctx context.Context, steps []step.Step, h Hooks) Outcome {
	return e.Run(ctx, &Record{Steps: steps}, h)
}

func refused(r *Record, err error) Outcome {
	out := Outcome{}
	for _, s := range r.Steps {
		out[s.GPU] = Result{State: Undone, Reason: err.Error(), Step: -1}
	}
	return out
}

func (e *Engine) run(ctx context.Context, by map[string][]step.Step, h Hooks, dropped map[string]int, resumed bool) Outcome {
	out := Outcome{}
	for g, n := range dropped {
		out[g] = Result{State: Reached, Step: -1, Dropped: n}
	}
	run := &running{Engine: e, hooks: h, resumed: resumed}
	before, after := split(by[""])
	delete(by, "")
	node := run.runSteps(ctx, before)
	if node.State != Reached {
		for g := range by {
			out[g] = Result{State: Undone, Reason: "not begun: " + node.Reason, Step: -1, Dropped: dropped[g]}
			if node.State == Interrupted {
				out[g] = Result{State: Interrupted, Reason: node.Reason, Step: -1, Dropped: dropped[g]}
			}
		}
		node.Dropped = dropped[""]
		out[""] = node
		return out
	}

	var mu locks.Mutex[locks.Leaf] // guards out while the GPUs are changed
	var wait sync.WaitGroup
	for g, steps := range by {
		wait.Go(func() {
			l := run.runSteps(ctx, steps)
			l.Dropped = dropped[g]
			mu.Lock()
			defer mu.Unlock()
			out[g] = l
		})
	}
	wait.Wait()

	if out.State() != Interrupted {
		node = run.finish(ctx, after)
	}
	if len(before)+len(after)+dropped[""] > 0 {
		node.Dropped = dropped[""]
		out[""] = node
	}
	return out
}

// split separates the node's steps before the GPUs from those after them.
func split(steps []step.Step) (before, after []step.Step) {
	i := slices.IndexFunc(steps, func(s step.Step) bool { return s.Phase == step.GrantAccess })
	if i < 0 {
		i = len(steps)
	}
	return steps[:i], steps[i:]
}

// running is one run.
type running struct {
	*Engine
	hooks   Hooks
	resumed bool
	mu      locks.Mutex[locks.Progress] // serialises hooks.Progress
}

// errStop: the engine was stopped.
var errStop = errors.New("the daemon is stopping")

// runSteps carries out steps in sequence, and undoes them when one fails.
func (r *running) runSteps(ctx context.Context, steps []step.Step) Result {
	if r.resumed && r.complete(ctx, steps) {
		for _, s := range steps {
			r.report(Progress{Step: s.ID, GPU: s.GPU, State: Done, Skipped: true})
		}
		return Result{State: Reached, Step: -1}
	}
	for i := range steps {
		err := r.do(ctx, &steps[i])
		if err == nil {
			continue
		}
		failed := steps[i]
		if ctx.Err() != nil {
			return Result{State: Interrupted, Reason: errStop.Error(), Step: failed.ID}
		}
		if errors.Is(err, step.ErrAfterBoot) {
			return Result{State: Deferred, Reason: reason(err), Err: err, Step: failed.ID}
		}
		l := Result{State: Undone, Reason: "cannot " + failed.Text + ": " + reason(err), Err: err, Step: failed.ID}
		if err := r.undoSteps(ctx, steps[:i+1]); err != nil {
			l.State, l.Reason, l.Err = Held, l.Reason+"; and it could not be undone: "+reason(err), errors.Join(l.Err, err)
			if ctx.Err() != nil {
				l.State = Interrupted
			}
		}
		return l
	}
	return Result{State: Reached, Step: -1}
}

// finish carries out the node's last steps. They are independent (a stopped unit is started again whatever happened to the
// others), so all are tried and none is undone: undoing the node's first steps could grant access to hardware that another
// tenant has by now.
func (r *running) finish(ctx context.Context, steps []step.Step) Result {
	l := Result{State: Reached, Step: -1}
	var reasons []string
	for i := range steps {
		err := r.do(ctx, &steps[i])
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return Result{State: Interrupted, Reason: errStop.Error(), Step: steps[i].ID}
		}
		l.State, l.Step, l.Err = Held, steps[i].ID, errors.Join(l.Err, err)
		reasons = append(reasons, "cannot "+steps[i].Text+": "+reason(err))
	}
	l.Reason = strings.Join(reasons, "; ")
	return l
}

// complete reports whether all steps of a GPU of a resumed change were done before. Revoke steps are not checked where grant
// steps follow: the grant changed what was revoked, and revoking again would deny access without need.
func (r *running) complete(ctx context.Context, steps []step.Step) bool {
	grants := slices.ContainsFunc(steps, func(s step.Step) bool { return s.Phase == step.GrantAccess })
	for _, s := range steps {
		if s.Phase == step.RevokeAccess && grants {
			continue
		}
		s, ok, err := r.prepare(ctx, s)
		if err != nil {
			return false
		}
		if !ok {
			continue
		}
		if applied, err := r.applied(ctx, s); err != nil || !applied {
			return false
		}
	}
	return true
}

// do carries out one step and reads back that it worked.
func (r *running) do(ctx context.Context, s *step.Step) error {
	if ctx.Err() != nil {
		return errStop
	}
	now, ok, err := r.prepare(ctx, *s)
	if err != nil {
		return r.failed(s, 0, fmt.Errorf("cannot observe what to grant: %w", err))
	}
	if !ok {
		r.report(Progress{Step: s.ID, GPU: s.GPU, State: Done, Skipped: true})
		return nil
	}
	*s = now
	applied, err := r.applied(ctx, *s)
	if err != nil {
		return r.failed(s, 0, fmt.Errorf("cannot read the state before it: %w", err))
	}
	if applied {
		r.report(Progress{Step: s.ID, GPU: s.GPU, State: Done, Skipped: true})
		return nil
	}
	began := r.now()
	r.report(Progress{Step: s.ID, GPU: s.GPU, State: Doing})
	doErr := r.carryOut(ctx, *s)
	// Read back in any case: a call that failed or timed out has often had its effect.
	applied, err = r.applied(ctx, *s)
	if err == nil && !applied && errors.Is(doErr, gpu.ErrTimeout) && ctx.Err() == nil {
		// The GPU answers, so the call was lost before it reached the GPU, for example in a worker that was killed.
		doErr = r.carryOut(ctx, *s)
		applied, err = r.applied(ctx, *s)
	}
	duration := r.now().Sub(began)
	switch {
	case err != nil:
		return r.failed(s, duration, errors.Join(doErr, fmt.Errorf("cannot read back whether it worked: %w", err)))
	case applied:
		r.report(Progress{Step: s.ID, GPU: s.GPU, State: Done, Duration: duration})
		r.log(slog.LevelInfo, "step done", s, slog.Duration("duration", duration))
		return nil
	case doErr != nil:
		return r.failed(s, duration, doErr)
	}
	why := "the call succeeded, but nothing has changed"
	if h, ok := r.Handlers[s.Kind].(Explainer); ok {
		why = h.NotThere(*s)
	}
	return r.failed(s, duration, errors.New(why))
}

// carryOut carries out a step within its deadline.
func (r *running) carryOut(ctx context.Context, s step.Step) error {
	faultpoint.Hit("engine.before-do." + s.Kind)
	limited, cancel := r.limit(ctx, s)
	defer cancel()
	waits := step.WithWaits(limited, func(text string) {
		if limited.Err() == nil { // Else the step has ended.
			r.report(Progress{Step: s.ID, GPU: s.GPU, State: Doing, WaitsFor: text})
		}
	})
	err := r.Handlers[s.Kind].Do(waits, s)
	faultpoint.Hit("engine.after-do." + s.Kind)
	return err
}

// undoSteps undoes steps in reverse order. It stops at the first that cannot be undone: access stays revoked.
func (r *running) undoSteps(ctx context.Context, steps []step.Step) error {
	for i := len(steps) - 1; i >= 0; i-- {
		if ctx.Err() != nil {
			return errStop
		}
		s := &steps[i]
		if last := i == len(steps)-1; !last { // the failed step may be half done, whatever Applied reports
			if applied, err := r.applied(ctx, *s); err == nil && !applied {
				continue
			}
		}
		began := r.now()
		r.report(Progress{Step: s.ID, GPU: s.GPU, State: Undoing})
		faultpoint.Hit("engine.before-undo." + s.Kind)
		err := r.undo(ctx, *s)
		if err != nil && ctx.Err() == nil {
			// A call that failed has often had its effect. Undo is idempotent, so the second call shows it.
			err = r.undo(ctx, *s)
		}
		faultpoint.Hit("engine.after-undo." + s.Kind)
		duration := r.now().Sub(began)
		if err != nil {
			return r.failed(s, duration, fmt.Errorf("cannot undo %q: %w", s.Text, err))
		}
		r.report(Progress{Step: s.ID, GPU: s.GPU, State: StepUndone, Duration: duration})
		r.log(slog.LevelInfo, "step undone", s, slog.Duration("duration", duration))
	}
	return nil
}

func (r *running) undo(ctx context.Context, s step.Step) error {
	limited, cancel := r.limit(ctx, s)
	defer cancel()
	return r.Handlers[s.Kind].Undo(limited, s)
}

func (r *running) prepare(ctx context.Context, s step.Step) (step.Step, bool, error) {
	if s.Phase != step.GrantAccess || r.hooks.PrepareGrant == nil {
		return s, true, nil
	}
	limited, cancel := r.limit(ctx, s)
	defer cancel()
	return r.hooks.PrepareGrant(limited, s)
}

func (r *running) applied(ctx context.Context, s step.Step) (bool, error) {
	limited, cancel := r.limit(ctx, s)
	defer cancel()
	return r.Handlers[s.Kind].Applied(limited, s)
}

// limit sets the deadline of a step. When ctx ends, the step may continue for the grace: letting it finish is cheaper than
// finding out later how far it came.
func (r *running) limit(ctx context.Context, s step.Step) (context.Context, context.CancelFunc) {
	timeout := time.Minute
	if r.Timeout != nil {
		timeout = r.Timeout(s)
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	grace := r.Grace
	if grace == 0 {
		grace = 10 * time.Second
	}
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			cancel()
		case <-limited.Done():
		}
	})
	return limited, func() { stop(); cancel() }
}

func (r *running) failed(s *step.Step, duration time.Duration, err error) error {
	r.report(Progress{Step: s.ID, GPU: s.GPU, State: Failed, Duration: duration, Err: err})
	r.log(slog.LevelError, "step failed", s, slog.Duration("duration", duration), slog.String("error", err.Error()))
	return err
}

func (r *running) report(p Progress) {
	if r.hooks.Progress == nil {
		return
	}
	p.At = r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hooks.Progress(p)
}

func (r *running) log(level slog.Level, message string, s *step.Step, more ...slog.Attr) {
	if r.Log == nil {
		return
	}
	attrs := append(
		[]slog.Attr{slog.Int("step", s.ID), slog.String("kind", s.Kind), slog.String("gpu", s.GPU), slog.String("text", s.Text)},
		more...)
	r.Log.LogAttrs(context.Background(), level, message, attrs...)
}

func (r *running) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// reason keeps an error on one line and without a second "cannot".
func reason(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", "; "), "cannot ")
}
