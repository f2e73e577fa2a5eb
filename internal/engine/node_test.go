package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
)

// fakeNode is a node of named values instead of hardware, units and rules. Each write has two halves, and the power can be
// cut before, between and after them. It checks a rule: a GPU's hardware is only changed while no tenant has access.
type fakeNode struct {
	mu       sync.Mutex
	values   map[string]string
	reads    int
	writes   int
	boundary int                // how many boundaries were passed
	cut      int                // the boundary at which the power is cut, from 1; 0: never
	off      context.CancelFunc // called then
	down     bool
	broken   map[string]bool // "do key" and "undo key" that always fail
	lying    map[string]bool // keys whose writes succeed and change nothing
	pending  map[string]bool // keys whose writes have an effect at the next boot
	late     map[string]bool // keys whose writes take effect and return an error
	wrong    []string        // breaches of the rule
}

var (
	errPower  = errors.New("the power is off")
	errBroken = errors.New("broken")
	errLate   = errors.New("no answer in time")
)

type args struct{ Key, To string }

// set is a step that changes a value.
func set(id int, gpu string, phase step.Phase, key, from, to string) step.Step {
	return step.Step{
		ID: id, Kind: "node.set", GPU: gpu, Phase: phase, Text: fmt.Sprintf("set %s to %q", key, to),
		Args: step.Must(args{key, to}), Undo: step.Must(args{key, from}), Disruption: step.Idle,
	}
}

// gpuSteps are the steps of one GPU as in a plan: access is revoked, the hardware changes, access is granted.
func gpuSteps(gpu string, id int) []step.Step {
	return []step.Step{
		set(id, gpu, step.GrantAccess, gpu+"/access", "", "new"),
		set(id+1, gpu, step.Change, gpu+"/hw1", "old", "new"),
		set(id+2, gpu, step.Change, gpu+"/hw2", "old", "new"),
		set(id+3, gpu, step.RevokeAccess, gpu+"/access", "old", ""),
	}
}

func newFakeNode(gpus ...string) *fakeNode {
	w := &fakeNode{
		values:  map[string]string{"unit": "up"},
		broken:  map[string]bool{},
		lying:   map[string]bool{},
		late:    map[string]bool{},
		pending: map[string]bool{},
	}
	for _, g := range gpus {
		w.values[g+"/access"], w.values[g+"/hw1"], w.values[g+"/hw2"] = "old", "old", "old"
	}
	return w
}

// side returns which of its two states a GPU has; "" for neither.
func (w *fakeNode) side(gpu string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.values[gpu+"/access"]
	if w.values[gpu+"/hw1"] != v || w.values[gpu+"/hw2"] != v {
		return ""
	}
	return v
}

func (w *fakeNode) get(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.values[key]
}

// powerOn restores the power: the same node for another process.
func (w *fakeNode) powerOn(ctx context.Context, cut int) (context.Context, context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, w.off = context.WithCancel(ctx)
	w.down, w.boundary, w.cut = false, 0, cut
	return ctx, w.off
}

// passLocked passes one boundary; false when the power is off.
func (w *fakeNode) passLocked() bool {
	w.boundary++
	if w.boundary == w.cut && !w.down {
		w.down = true
		w.off()
	}
	return !w.down
}

func (w *fakeNode) writeLocked(what, key, to string) error {
	if !w.passLocked() {
		return errPower
	}
	if what == "do" && w.pending[key] {
		return fmt.Errorf("it is kept: %w", step.ErrAfterBoot)
	}
	if w.broken[what+" "+key] {
		w.values[key] = "half:" + to
		return errBroken
	}
	if w.lying[key] {
		return nil
	}
	if gpu, hardware, _ := strings.Cut(key, "/"); strings.HasPrefix(hardware, "hw") && w.values[gpu+"/access"] != "" {
		w.wrong = append(w.wrong, fmt.Sprintf("%s was changed while %q had access", key, w.values[gpu+"/access"]))
	}
	w.writes++
	w.values[key] = "half:" + to
	if !w.passLocked() {
		return errPower
	}
	w.values[key] = to
	if !w.passLocked() {
		return errPower
	}
	if w.late[key] {
		return errLate
	}
	return nil
}

func decode(raw json.RawMessage) args {
	var a args
	if err := json.Unmarshal(raw, &a); err != nil {
		panic(err)
	}
	return a
}

func (w *fakeNode) Applied(_ context.Context, s step.Step) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if !w.passLocked() {
		return false, errPower
	}
	a := decode(s.Args)
	return w.values[a.Key] == a.To, nil
}

func (w *fakeNode) Do(_ context.Context, s step.Step) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := decode(s.Args)
	return w.writeLocked("do", a.Key, a.To)
}

func (w *fakeNode) Undo(_ context.Context, s step.Step) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := decode(s.Undo)
	if w.values[a.Key] == a.To {
		return nil
	}
	return w.writeLocked("undo", a.Key, a.To)
}

func (w *fakeNode) engine() *engine.Engine {
	return &engine.Engine{Handlers: engine.Handlers{"node.set": w, "mig.create": w, "unit.stop": w}, Grace: 1}
}

func (w *fakeNode) snapshot() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.values)
}
