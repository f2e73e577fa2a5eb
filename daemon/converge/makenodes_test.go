package converge

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/test/programs"
)

// oneGPU is a host with one GPU. It answers as long as there is time for it.
type oneGPU struct {
	*idleDriver
	identity gpu.Identity
}

func (d oneGPU) Node(ctx context.Context) (gpu.NodeInfo, error) {
	return gpu.NodeInfo{GPUs: []gpu.Identity{d.identity}}, ctx.Err()
}

func (d oneGPU) Snapshot(ctx context.Context, _ gpu.UUID) (gpu.Snapshot, error) {
	return gpu.Snapshot{Identity: d.identity, Memory: gpu.Memory{Total: 1 << 30}}, ctx.Err()
}

func (oneGPU) Profiles(context.Context, gpu.UUID) (gpu.Profiles, error) {
	return gpu.Profiles{}, gpu.ErrNotSupported
}

// A program that makes device nodes and does not end takes no time from the observation after it, nor from the corrections: they revoke
// access.
func TestAHangingHelperTakesNoTimeFromThePass(t *testing.T) {
	for name, pass := range map[string]func(ctx context.Context, w *fixture) error{
		"of the loop":   func(ctx context.Context, w *fixture) error { w.Pass(ctx); return nil },
		"of the change": func(ctx context.Context, w *fixture) error { return w.Converge(ctx, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, withoutReserved)
			identity := observetest.Device(false).Identity
			w.Observer.Driver = oneGPU{w.driver, identity}
			s, err := spec.Decode("node.yaml", []byte(withoutReserved))
			if err != nil {
				t.Fatal(err)
			}
			s.Normalize()
			r, _, err := spec.Resolve(s, []gpu.Identity{identity})
			if err != nil {
				t.Fatal(err)
			}
			w.State.SetDesired(state.DesiredOf(s, r, 1))
			write := func(path, text string) {
				path = filepath.Join(w.Policy.HostRoot, path)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), programs.Write(path, text)); err != nil {
					t.Error(err)
				}
			}
			write("proc/devices", "Character devices:\n195 nvidia\n509 nvidia-uvm\n")
			write("usr/bin/nvidia-modprobe", "")
			calls, ended := 0, 0
			w.Policy.Helper = func(ctx context.Context, _ []string) error {
				calls++
				write("dev/nvidia1", "") // One of several nodes, so that the node is observed again.
				<-ctx.Done()
				ended++
				return ctx.Err()
			}
			synctest.Test(t, func(t *testing.T) {
				if err := pass(t.Context(), w); err != nil {
					t.Error(err)
				}
			})
			if calls == 0 || ended != calls {
				t.Fatalf("the program was run %d times, and ended %d times", calls, ended)
			}
			last := w.Observer.Last()
			if last.DriverErr != nil || len(last.GPUs) != 1 || last.GPUs[0].Err != nil {
				t.Errorf("the last observation is %+v", last)
			}
			if len(w.port.Names()) == 0 {
				t.Error("no slice was corrected")
			}
		})
	}
}
