package devicepolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// nodesHost is a host with the driver and without its device nodes.
type nodesHost struct {
	*Policy
	t    *testing.T
	root string
}

func newNodesHost(t *testing.T) *nodesHost {
	t.Helper()
	h := &nodesHost{t: t, root: t.TempDir()}
	h.write("proc/devices", "Character devices:\n195 nvidia\n237 nvidia-caps\n509 nvidia-uvm\n")
	h.write("usr/bin/nvidia-modprobe", "")
	if err := os.Chmod(filepath.Join(h.root, "usr/bin/nvidia-modprobe"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.Policy = &Policy{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now),
		HostRoot: h.root,
		Hosts:    &isolation.HostCache{Root: h.root},
	}
	return h
}

func (h *nodesHost) write(path, text string) {
	h.t.Helper()
	path = filepath.Join(h.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		h.t.Fatal(err)
	}
}

// start is the start of a lease that needs a GPU.
func (h *nodesHost) start(ctx context.Context) error {
	rule := cgroup.DeviceRule{Type: 'c', Major: 195, Access: "rw", Name: "/dev/nvidia0"}
	return h.CheckNodes(ctx, nil, &lease.Lease{ID: "l"}, []cgroup.DeviceRule{rule})
}

// make makes the node.
func (h *nodesHost) make() { h.write("dev/nvidia0", "") }

// remove removes it.
func (h *nodesHost) remove() {
	h.t.Helper()
	if err := os.Remove(filepath.Join(h.root, "dev/nvidia0")); err != nil {
		h.t.Fatal(err)
	}
}

// A lease that starts while another one has its nodes made waits for them, and nothing makes them twice.
func TestNodesAreCreatedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newNodesHost(t)
		calls, goOn := 0, make(chan struct{})
		h.Helper = func(context.Context, []string) error {
			calls++
			<-goOn
			h.make()
			return nil
		}
		const starts = 5
		got := make(chan error, starts)
		for range starts {
			go func() { got <- h.start(t.Context()) }()
		}
		synctest.Wait()
		if n := len(got); n > 0 {
			t.Fatalf("%d starts did not wait: %v", n, <-got)
		}
		client, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- h.start(client) }()
		synctest.Wait()
		leave()
		if err := <-left; err == nil { // while the others wait
			t.Error("a start whose client has left succeeds without the node")
		}
		close(goOn)
		for range starts {
			if err := <-got; err != nil {
				t.Errorf("a lease is refused: %v", err)
			}
		}
		if calls != 1 {
			t.Errorf("the program ran %d times", calls)
		}
	})
}

// A node that could not be made is not tried at every start. What is no attempt of it does not count.
func TestWhichAttemptsCount(t *testing.T) {
	failed := func(context.Context, []string) error { return errors.New("exit status 1") }
	for _, tt := range []struct {
		name  string
		first func(h *nodesHost) Helper
		then  func(h *nodesHost) // between both starts
		tried bool               // the second start does not try it again
	}{
		{name: "it fails", first: func(*nodesHost) Helper { return failed }, tried: true},
		{name: "and time passes", first: func(*nodesHost) Helper { return failed }, then: func(*nodesHost) { time.Sleep(makeRetryInterval) }},
		{name: "and the driver is loaded again", first: func(*nodesHost) Helper { return failed }, then: func(h *nodesHost) { h.write("sys/module/nvidia/version", "580") }},
		{name: "an earlier program runs", first: func(*nodesHost) Helper {
			return func(context.Context, []string) error { return fmt.Errorf("%w: activating", ErrHelperRuns) }
		}},
		{name: "it takes too long", first: func(*nodesHost) Helper {
			return func(ctx context.Context, _ []string) error { <-ctx.Done(); return ctx.Err() }
		}, tried: true},
		{name: "what was made is removed", first: func(h *nodesHost) Helper {
			return func(context.Context, []string) error { h.make(); return nil }
		}, then: (*nodesHost).remove},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newNodesHost(t)
				h.Helper = tt.first(h)
				_ = h.start(t.Context()) // The second one shows what was noted.
				if tt.then != nil {
					tt.then(h)
				}
				calls := 0
				h.Helper = func(context.Context, []string) error { calls++; h.make(); return nil }
				err := h.start(t.Context())
				if want := map[bool]int{true: 0, false: 1}[tt.tried]; calls != want || (err != nil) != tt.tried {
					t.Errorf("the program ran %d times, want %d: %v", calls, want, err)
				}
			})
		})
	}
	t.Run("its client leaves", func(t *testing.T) {
		h := newNodesHost(t)
		ctx, leave := context.WithCancel(t.Context())
		h.Helper = func(ctx context.Context, _ []string) error { leave(); return ctx.Err() }
		_ = h.start(ctx)
		h.Helper = func(context.Context, []string) error { h.make(); return nil }
		if err := h.start(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Nothing makes a node that the driver leaves to an administrator, and the refusal says so.
func TestNoProgramCreatesNodesOfAnAdministrator(t *testing.T) {
	h := newNodesHost(t)
	h.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\nDeviceFileMode: 432\n")
	h.Helper = func(_ context.Context, argv []string) error { t.Errorf("%q is run", argv); return nil }
	err := h.start(t.Context())
	if refused := (*api.Error)(nil); !errors.As(err, &refused) || !strings.Contains(refused.Message, "proc/driver/nvidia/params") ||
		!strings.Contains(refused.Hint, "mknod -m 660 ") {
		t.Errorf("the lease is refused with %+v", err)
	}
}
