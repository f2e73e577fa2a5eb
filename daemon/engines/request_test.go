package engines

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What no keyed lease can have is refused with what is wrong.
func TestCheck(t *testing.T) {
	t.Parallel()
	if err := check(
		&api.EngineRequest{Key: "slurm:lab:42:0", GPUMemory: new(api.Bytes(1 << 30)), Share: new(api.Percent(10))},
	); err != nil {
		t.Error(err)
	}
	for says, q := range map[string]api.EngineRequest{
		"it is missing":      {},
		"longer than 128":    {Key: "slurm:" + strings.Repeat("x", 128)},
		"not ENGINE:NAME":    {Key: "42"},
		"other characters":   {Key: "slurm:a b"},
		"its account":        {Key: "slurm:1", Account: "a\nb"},
		"more than 128 GPUs": {Key: "slurm:1", GPUs: make([]string, 129)},
		"gpu_memory is 0":    {Key: "slurm:1", GPUMemory: new(api.Bytes(0))},
		"share is 0":         {Key: "slurm:1", Share: new(api.Percent(0))},
		"max_time is 0":      {Key: "slurm:1", MaxTime: new(api.Duration(0))},
		"bind_timeout is":    {Key: "slurm:1", BindTimeout: new(api.MostBindTimeout + 1)},
	} {
		e, ok := errors.AsType[*api.Error](check(&q))
		if !ok || e.Kind != api.KindInvalid || !strings.Contains(e.Message, says) {
			t.Errorf("%q: %v", says, e)
		}
	}
}

// A second request names the same or less: each term that differs is said.
func TestDifference(t *testing.T) {
	t.Parallel()
	full := func() lease.EngineTerms {
		return lease.EngineTerms{
			Tenant:   "red",
			Grant:    "part",
			Kind:     "timeslice",
			User:     "alice",
			Account:  "physics",
			GPUs:     []string{"GPU-1"},
			Instance: "4",
			Own:      lease.Own{Memory: 1 << 30, Share: 10},
			MaxTime:  new(api.Duration(time.Hour)),
		}
	}
	first := full()
	for _, second := range []lease.EngineTerms{full(), {}, {User: "alice"}} {
		if why := difference(&first, &second); why != "" {
			t.Errorf("%+v: %s", second, why)
		}
	}
	for name, change := range map[string]func(*lease.EngineTerms){
		"tenant":     func(x *lease.EngineTerms) { x.Tenant = "blue" },
		"grant":      func(x *lease.EngineTerms) { x.Grant = "other" },
		"kind":       func(x *lease.EngineTerms) { x.Kind = "mps" },
		"user":       func(x *lease.EngineTerms) { x.User = "bob" },
		"account":    func(x *lease.EngineTerms) { x.Account = "biology" },
		"GPUs":       func(x *lease.EngineTerms) { x.GPUs = []string{"GPU-1", "GPU-2"} },
		"instance":   func(x *lease.EngineTerms) { x.Instance = "0" },
		"gpu_memory": func(x *lease.EngineTerms) { x.Own.Memory = 2 << 30 },
		"share":      func(x *lease.EngineTerms) { x.Own.Share = 20 },
		"max_time":   func(x *lease.EngineTerms) { x.MaxTime = new(api.Duration(time.Minute)) },
	} {
		second := full()
		change(&second)
		if why := difference(&first, &second); !strings.Contains(why, "its "+name+" ") {
			t.Errorf("another %s: %q", name, why)
		}
		empty := lease.EngineTerms{}
		if why := difference(&empty, &second); why == "" {
			t.Errorf("%s where none was named is not refused", name)
		}
	}
}

// Of the requests of one key one runs at a time; another key does not wait for it, and a wait ends with its caller.
func TestOneRequestOfAKeyAtATime(t *testing.T) {
	t.Parallel()
	var k keys
	var running, most atomic.Int32
	var group loop.Group
	for range 20 {
		group.Go(func() {
			unlock, err := k.lock(t.Context(), "slurm:1")
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			running.Add(-1)
		})
	}
	group.Wait()
	if most.Load() != 1 || len(k.held) != 0 {
		t.Errorf("%d ran at once, %d keys are left", most.Load(), len(k.held))
	}
	unlock, err := k.lock(t.Context(), "slurm:1")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	other, err := k.lock(t.Context(), "slurm:2")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.lock(ctx, "slurm:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait without a caller ends with %v", err)
	}
}

// The same words name the same GPUs, also while a GPU that they name by its index is not read.
func TestSameGPUs(t *testing.T) {
	t.Parallel()
	read := lease.EngineTerms{GPUs: []string{"GPU-1"}, GPUsWritten: []string{"0"}}
	unread := lease.EngineTerms{GPUs: []string{"0"}, GPUsWritten: []string{"0"}}
	byUUID := lease.EngineTerms{GPUs: []string{"GPU-1"}, GPUsWritten: []string{"GPU-1"}}
	other := lease.EngineTerms{GPUs: []string{"1"}, GPUsWritten: []string{"1"}}
	for _, c := range []struct {
		first, second lease.EngineTerms
		same          bool
	}{{read, unread, true}, {unread, read, true}, {read, byUUID, true}, {read, other, false}, {unread, other, false}, {byUUID, unread, false}} {
		if why := difference(&c.first, &c.second); (why == "") != c.same {
			t.Errorf("%v after %v: %q", c.second.GPUsWritten, c.first.GPUsWritten, why)
		}
	}
}

// A version that knows no kept lease ends one at its time to bind: that is as far away as it may be, and never over already.
func TestAKeptLeaseHasATimeForOlderVersions(t *testing.T) {
	t.Parallel()
	en, l := newEngines(t, nil)
	en.Identities = server.NewIdentities(en.Reporter, en.Tasks, servertest.UidSelf, "off")
	c := &server.Call{Caller: &server.Caller{Peer: &server.Peer{}}}
	for keep, want := range map[bool]api.Duration{true: api.MostBindTimeout, false: api.DefaultBindTimeout} {
		q := &api.EngineRequest{Key: "kubernetes:1", Tenant: l.Terms.Tenant, Keep: keep}
		r, err := en.request(t.Context(), c, q, &lease.EngineTerms{})
		if err != nil || r.Engine.BindBy.Sub(en.Now()) != time.Duration(want) {
			t.Errorf("keep %v: %+v, %v", keep, r.Engine, err)
		}
	}
}
