package change

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
)

// Restore says that it compared the node only if it did: 'gpushare ready' waits for it.
func TestRestoreSaysWhetherItCompared(t *testing.T) {
	managed := map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeTimeslice}}
	for _, c := range []struct {
		name    string
		enforce api.OnOff
		gpus    map[gpu.UUID]*api.GPUSpec
		err     error
		before  func(w *fixture) (after func())
		want    bool
	}{
		{name: "every GPU", enforce: "on", gpus: managed, want: true},
		{name: "it observes", enforce: "observe", gpus: managed, err: gpu.ErrNotLoaded, want: true},
		{name: "the spec has no GPU", enforce: "on", err: gpu.ErrNotLoaded, want: true},
		{name: "there is no driver", enforce: "on", gpus: managed, err: gpu.ErrNotLoaded},
		{name: "a change is open", enforce: "on", gpus: managed, before: func(w *fixture) func() {
			w.State.SetChanging(&state.OpenChange{Operation: "apply-1"})
			return func() { w.State.EndChange() }
		}},
		{name: "a change is planned", enforce: "on", gpus: managed, before: func(w *fixture) func() {
			held, release := make(chan struct{}), make(chan struct{})
			w.Tasks.Go(func() {
				w.applyMu.Lock()
				defer w.applyMu.Unlock()
				close(held)
				<-release
			})
			<-held
			return func() { close(release) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			w.State.SetDesired(&state.Desired{Generation: 1, Spec: &api.Spec{Node: api.NodeSpec{Enforce: c.enforce}}, GPUs: c.gpus})
			if c.before != nil {
				defer c.before(w)()
			}
			if got := w.Restore(&observe.Node{GPUs: []observe.GPU{observetest.Device(false)}, DriverErr: c.err}); got != c.want {
				t.Errorf("it says %v", got)
			}
		})
	}
}
