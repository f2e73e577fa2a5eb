package power

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/step"
)

// ReadInterval is how often the power of a GPU is read with its range, where gpushare sets the limit or has to restore it; no other GPU is
// read. A change and a proposed spec read it at once, and so does a pass whose observation has another limit.
const ReadInterval = 30 * time.Second

// readTimeout bounds one round of readings.
const readTimeout = 10 * time.Second

// driver is the part of the port that reads and sets power limits.
type driver interface {
	Health(ctx context.Context, id gpu.UUID) (gpu.Health, error)
	SetPowerLimit(ctx context.Context, id gpu.UUID, milliwatts uint64) error
}

// Caps keeps the power limits. Set the fields before the first use.
type Caps struct {
	Driver driver
	Dir    string // of the limits from before
	Now    func() time.Time

	mu     locks.Mutex[locks.Leaf] // guards what follows
	read   map[gpu.UUID]reading
	synced map[gpu.UUID]synced // limits that were read back as desired
	unmet  map[gpu.UUID]string // why a cap is not in force
}

type reading struct {
	at    time.Time
	epoch string
	power *gpu.Power
}

type synced struct {
	limit uint64
	epoch string
}

// Plan is the steps that bring GPUs to their limits.
type Plan struct {
	Steps    []step.Step
	Problems map[gpu.UUID]error
	// Changed describes the limits that were changed from outside, by GPU: "the power limit of GPU 0 (…): 300 W → 400 W".
	Changed map[gpu.UUID]string
}

// Plan reads the limits where gpushare sets them or has to restore them, and plans. fresh: not from a reading of before.
func (c *Caps) Plan(ctx context.Context, targets []Target, fresh bool) Plan {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	type one struct {
		step *step.Step
		was  uint64
		err  error
	}
	found := make([]one, len(targets))
	var running sync.WaitGroup
	for i := range targets {
		t := &targets[i]
		running.Go(func() {
			kept, err := c.before().Get(t.GPU)
			if t.Err != nil || t.Cap == 0 && kept == nil && err == nil {
				return
			}
			var p *gpu.Power
			if err == nil {
				p, err = c.power(ctx, t, fresh)
			}
			if err == nil {
				found[i].step, err = plan(t, p, kept)
			}
			if found[i].err = err; p != nil {
				found[i].was = p.Limit
			}
		})
	}
	running.Wait()
	out := Plan{Problems: map[gpu.UUID]error{}, Changed: map[gpu.UUID]string{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced, c.unmet = filled(c.synced), filled(c.unmet)
	for i := range targets {
		t, f := &targets[i], &found[i]
		now := synced{t.Cap, t.Epoch}
		switch {
		case f.err != nil:
			out.Problems[t.GPU] = f.err
		case f.step != nil:
			out.Steps = append(out.Steps, *f.step)
			if t.Cap != 0 && c.synced[t.GPU] == now {
				out.Changed[t.GPU] = fmt.Sprintf("the power limit of %s: %s → %s", t.Name, watts(t.Cap), watts(f.was))
			}
		}
	}
	return out
}

// PlanUnmanage plans the return of all limits from before. That of a GPU that does not answer, or that cannot be read, remains, with a
// warning.
func (c *Caps) PlanUnmanage(ctx context.Context, targets []Target) (steps []step.Step, warnings []string) {
	p := c.Plan(ctx, targets, false)
	for i := range targets {
		t := &targets[i]
		err := p.Problems[t.GPU]
		if kept, _ := c.before().Get(t.GPU); t.Err != nil && kept != nil {
			err = t.Err
		}
		if err != nil {
			warnings = append(warnings, "the power limit of "+t.Name+" is not restored: "+err.Error())
		}
	}
	for i := range p.Steps {
		p.Steps[i].Reason = "the node is unmanaged"
	}
	return p.Steps, warnings
}

// Converged records, at the end of a pass, which caps are in force and why others are not.
func (c *Caps) Converged(targets []Target, p Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced, c.unmet = map[gpu.UUID]synced{}, map[gpu.UUID]string{}
	for i := range targets {
		t := &targets[i]
		r, known := c.read[t.GPU]
		known = known && r.epoch == t.Epoch && r.power != nil
		switch err := p.Problems[t.GPU]; {
		case t.Cap == 0 || t.Err != nil:
		case err != nil:
			c.unmet[t.GPU] = err.Error()
		case known && r.power.Limit == t.Cap:
			c.synced[t.GPU] = synced{t.Cap, t.Epoch}
		case known:
			c.unmet[t.GPU] = fmt.Sprintf("the power limit of %s is %s, and power_cap is %s", t.Name, watts(r.power.Limit), watts(t.Cap))
		}
	}
}

// InForce reports whether the cap of a GPU was read back as desired in the last pass.
func (c *Caps) InForce(id gpu.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.synced[id]
	return ok
}

// Unmet returns why caps are not in force, by GPU.
func (c *Caps) Unmet() map[gpu.UUID]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.unmet)
}

// Forget drops what was read of the GPUs that the steps of a change wrote: a reset removes the limit, which is no change from outside.
func (c *Caps) Forget(steps []step.Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range steps {
		delete(c.read, gpu.UUID(steps[i].GPU))
		delete(c.synced, gpu.UUID(steps[i].GPU))
	}
}

// power returns the reading of a GPU, at most ReadInterval old unless fresh, and none that the observation shows to be old. nil: it
// does not report power.
func (c *Caps) power(ctx context.Context, t *Target, fresh bool) (*gpu.Power, error) {
	c.mu.Lock()
	r, ok := c.read[t.GPU]
	c.mu.Unlock()
	changed := t.Limit != nil && r.power != nil && *t.Limit != r.power.Limit
	if now := c.Now(); ok && !fresh && !changed && r.epoch == t.Epoch && !now.Before(r.at) && now.Sub(r.at) < ReadInterval {
		return r.power, nil
	}
	p, err := c.readNow(ctx, t.GPU)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = filled(c.read)
	c.read[t.GPU] = reading{c.Now(), t.Epoch, p}
	return p, nil
}

func (c *Caps) readNow(ctx context.Context, id gpu.UUID) (*gpu.Power, error) {
	h, err := c.Driver.Health(ctx, id)
	return h.Power, err
}

func filled[V any](m map[gpu.UUID]V) map[gpu.UUID]V {
	if m == nil {
		return map[gpu.UUID]V{}
	}
	return m
}

// set brings one GPU to a limit and reads it back. The limit from before is on disk while gpushare sets one. always: it is set also if
// the GPU has it.
func (c *Caps) set(ctx context.Context, id gpu.UUID, a Args, always bool) error {
	p, err := c.readNow(ctx, id)
	if err != nil {
		return err
	}
	if p == nil {
		return errors.New("the GPU does not report its power")
	}
	if a.Before != nil {
		if err := c.before().Keep(id, *a.Before); err != nil {
			return err
		}
	}
	if p.Limit != a.Limit || always {
		if err := c.Driver.SetPowerLimit(ctx, id, a.Limit); err != nil {
			return err
		}
		if p, err = c.readNow(ctx, id); err != nil {
			return fmt.Errorf("cannot read the power limit back: %w", err)
		}
	}
	c.note(id, p)
	if p == nil || p.Limit != a.Limit {
		return fmt.Errorf("the power limit was set to %s and reads back as %s", watts(a.Limit), readText(p))
	}
	if a.Before == nil {
		return c.before().Forget(id)
	}
	return nil
}

// note keeps a reading of a GPU whose epoch is known.
func (c *Caps) note(id gpu.UUID, p *gpu.Power) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.read[id]; ok {
		c.read[id] = reading{c.Now(), r.epoch, p}
	}
}

func readText(p *gpu.Power) string {
	if p == nil {
		return "nothing"
	}
	return watts(p.Limit)
}
