package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/terminal"
	"github.com/gpushare/gpushare/mig"
)

// KindProcessStop is the kind of step that ends a process of no lease. Nothing brings it back: it has no undo.
const KindProcessStop = "process.stop"

// processArgs are its arguments.
type processArgs struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since boot: another process of that number is not meant
	Name  string `json:"name"`
}

// planProcessStops ends the processes of no lease that the hardware steps would stop. They are steps of the GPU, so that
// one that does not end keeps only that GPU from changing. Without force no such hardware step is planned. It is pure.
func planProcessStops(hardware []step.Step, node *observe.Node, use usage) []step.Step {
	var out []step.Step
	seen := map[string]bool{}
	for i := range hardware {
		s := &hardware[i]
		g, ok := node.GPU(gpu.UUID(s.GPU))
		if !ok || s.Disruption != step.Running {
			continue
		}
		for _, h := range touchedBy(s, g, use) {
			key := fmt.Sprint(s.GPU, h.pid)
			if h.fate != forced || h.lease != "" || h.start == 0 || seen[key] {
				continue
			}
			seen[key] = true
			out = append(out, step.Step{
				Kind: KindProcessStop, GPU: s.GPU, Phase: step.Narrow, Args: step.Must(processArgs{h.pid, h.start, h.name}),
				Text: "stop " + h.String(), Reason: "it is in the way: " + s.Text, Disruption: step.Running, Disturbs: []string{h.String()},
			})
		}
	}
	return out
}

// touchedBy are the processes that a step of a GPU takes something away from.
func touchedBy(s *step.Step, g *observe.GPU, use usage) []deviceHolder {
	switch s.Kind {
	case mig.KindMode:
		return inTheWay(g, nil, use)
	case mig.KindDestroy:
		var args mig.InstanceArgs
		if json.Unmarshal(s.Args, &args) != nil {
			return nil
		}
		for i := range g.Instances {
			if in := &g.Instances[i]; in.Placement == args.Placement && in.ProfileID == args.ProfileID {
				return inTheWay(g, in, use)
			}
		}
	}
	return nil
}

// processStop carries out the steps that end processes.
type processStop struct{ d *Stopper }

// Applied tells whether the process has ended.
func (h processStop) Applied(_ context.Context, s step.Step) (bool, error) {
	a, err := processOf(s)
	return err == nil && !procfs.Alive(a.PID, a.Start), err
}

// Do ends the process the polite way, and returns when it has ended. It is never frozen, because its cgroup is not ours.
func (h processStop) Do(ctx context.Context, s step.Step) error {
	a, err := processOf(s)
	if err != nil {
		return err
	}
	p, err := procfs.OpenPidfd(a.PID, a.Start)
	if errors.Is(err, procfs.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	// Only now that it is held does this say whose it is: leases are ended by their own steps.
	if id, held := h.d.attribution.ownerOf(a.PID); held {
		return fmt.Errorf("cannot stop pid %d (%s): it came into lease %s meanwhile", a.PID, a.Name, id)
	}
	text := fmt.Sprintf("process %d (%s) is stopped: %s", a.PID, a.Name, s.Reason)
	h.d.Events.publish(api.Event{Kind: "process.stopping", GPU: s.GPU, Message: text})
	h.d.audit("gpushared", "force", text)
	if uid, err := procfs.UID(a.PID); err == nil {
		terminal.Tell([]int{a.PID}, int(uid), "gpushare: "+text)
	}
	return endPolitely(ctx, p, stopGrace)
}

// Undo does nothing: who was stopped stays stopped.
func (h processStop) Undo(context.Context, step.Step) error { return nil }

func processOf(s step.Step) (processArgs, error) {
	var a processArgs
	if err := json.Unmarshal(s.Args, &a); err != nil {
		return a, fmt.Errorf("cannot read which process to stop: %w", err)
	}
	return a, nil
}

// endPolitely asks a process to end, kills it when it has not after the grace, and returns when it has ended.
func endPolitely(ctx context.Context, p *procfs.Pidfd, grace time.Duration) error {
	err := p.Signal(unix.SIGTERM)
	if errors.Is(err, procfs.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if p.Wait(patience) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot wait for the end of process %d: %w", p.PID(), err)
	}
	if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, procfs.ErrGone) {
		return err
	}
	dead, cancel := context.WithTimeout(ctx, wallTimeout)
	defer cancel()
	if err := p.Wait(dead); err != nil {
		return fmt.Errorf("process %d was killed and does not end: it hangs in the kernel, often in the driver: %w", p.PID(), err)
	}
	return nil
}
