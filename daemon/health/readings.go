package health

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	rules "github.com/gpushare/gpushare/health"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
)

// readLoop reads each GPU in an interval, and earlier after an XID, until ctx ends. No GPU waits for another one.
func (k *Health) readLoop(ctx context.Context) {
	for {
		node := k.Observed()
		for i := range node.GPUs {
			// One that does not answer is read when it answers again: until then only its state is known.
			if g := &node.GPUs[i]; g.Err == nil && node.DriverErr == nil {
				k.tasks.Go(func() {
					_, _ = k.read(ctx, g.Identity.UUID) // What failed is in the status.
					k.senseInTime(ctx, g.Identity.UUID)
				})
			}
		}
		if _, ok := k.Due.Every(ctx, interval); !ok || !loop.Pause(ctx, spacing) {
			return
		}
	}
}

// begin begins a reading: one of each GPU at a time. busy is closed when the one that is under way ends; nil if there is none.
func (k *Health) begin(id gpu.UUID) (busy <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.ofLocked(id)
	if g.reading != nil {
		return g.reading
	}
	g.reading = make(chan struct{})
	return nil
}

func (g *known) end() {
	close(g.reading)
	g.reading = nil
}

// read reads a GPU once, unless it is being read, and draws the consequences.
func (k *Health) read(ctx context.Context, id gpu.UUID) (busy <-chan struct{}, err error) {
	if busy = k.begin(id); busy != nil {
		return busy, nil
	}
	before := k.record(id)
	h, err := k.query(ctx, id)
	node := k.Observed()
	m := k.momentOf(node)
	policy := policyOf(k.State.Desired(), id)
	k.mu.Lock()
	g := k.ofLocked(id)
	g.end()
	if ctx.Err() != nil {
		k.mu.Unlock()
		return nil, ctx.Err()
	}
	g.err = err
	var was, now rules.Record
	var failed error
	began := false // an hour of its history
	hot := g.heat.Hot
	g.heat = g.heat.After(answered(&h, err), policy, m.At)
	hot = hot || g.heat.Hot
	if err == nil {
		g.last, g.readAt = &h, m.At
		began = !isEmpty(&h) && g.history.Add(&h, m.At)
		g.findings = append(rules.Readings(&h, policy, g.findings), g.history.Trends(&h, m.At)...)
		was, now, failed = k.applyLocked(transition{id, func(r rules.Record) rules.Record {
			current, ok := node.GPU(id)
			if r != before || !ok {
				return r // What was read is from before the reset.
			}
			return r.AfterReading(&h, seen(node, current), policy, m)
		}})
	}
	k.updateConditionsLocked(node)
	k.mu.Unlock()
	if began {
		k.saveHistory()
	}
	k.changed(id, was, now, failed)
	if hot && k.Heated != nil {
		k.Heated()
	}
	k.Invalidate()
	return nil, err
}

// answered is a reading; nil if it failed.
func answered(h *gpu.Health, err error) *gpu.Health {
	if err != nil {
		return nil
	}
	return h
}

// Heat is how hot a GPU is now, and whether the spec pauses leases on it when it is hot.
func (k *Health) Heat(id gpu.UUID) (heat rules.Heat, pauses bool) {
	policy := policyOf(k.State.Desired(), id)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ofLocked(id).heat.At(k.Now()), policy.PauseLow
}

// query reads the sensors. Without a reading nothing is known, which is no problem.
func (k *Health) query(ctx context.Context, id gpu.UUID) (gpu.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	h, err := k.Driver.Health(ctx, id)
	if gpu.IsAny(err, gpu.ErrMissing, gpu.ErrNotSupported) {
		return gpu.Health{}, nil
	}
	return h, err
}

// Retry tests a closed GPU for an administrator, and opens it if its readings permit. It returns why it stays closed.
func (k *Health) Retry(ctx context.Context, id gpu.UUID) error {
	r := k.record(id)
	if r.Open() {
		return nil
	}
	node, name := k.Observed(), k.nameOf(id)
	g, ok := node.GPU(id)
	if !ok || g.Err != nil || node.DriverErr != nil {
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot test %s: it does not answer, and it is closed to new leases: %s", name, r.Reason()),
			Hint:    "it is tested when it answers again, as after a boot",
		}
	}
	k.apply(transition{id, func(r rules.Record) rules.Record { return r.Retried(k.momentOf(node)) }})
	busy, err := k.read(ctx, id)
	if busy != nil { // It began before, so its result does not count.
		select {
		case <-busy:
			_, err = k.read(ctx, id)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	switch r = k.record(id); {
	case r.Open():
		return nil
	case r.State == rules.Testing:
		return &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot test %s: its sensors cannot be read%s", name, because(err)),
			Hint:    "it is tested again every " + interval.String(),
		}
	}
	return &api.Error{
		Kind:    api.KindConflict,
		Message: fmt.Sprintf("cannot open %s: %s", name, r.Reason()),
		Hint:    r.Helps(indexOf(node, id)),
	}
}

// indexOf is how commands name a GPU.
func indexOf(node *observe.Node, id gpu.UUID) string {
	if g, ok := node.GPU(id); ok && g.Identity.Index >= 0 {
		return fmt.Sprint(g.Identity.Index)
	}
	return string(id)
}

func because(err error) string {
	if err == nil {
		return " now"
	}
	return ": " + err.Error()
}
