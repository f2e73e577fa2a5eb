package cgroup

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// adapters are the adapters that the tests of the port run with.
func adapters() map[string]func(*testing.T) Port {
	return map[string]func(*testing.T) Port{
		"cgroupfs":  func(t *testing.T) Port { return newTree(t) },
		"processes": func(*testing.T) Port { return NewProcesses("a test") },
	}
}

func eachAdapter(t *testing.T, test func(*testing.T, Port)) {
	for name, open := range adapters() {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func train(id string, p Process) Scope {
	return Scope{ID: id, Slice: SliceName{Tenant: "vision", Grant: "train"}, Process: p}
}

func TestPortLifeOfAScope(t *testing.T) {
	eachAdapter(t, func(t *testing.T, port Port) {
		ctx := within(t, 20*time.Second)
		p, release := spawnWaiting(t, "sleep 60 & sleep 60 & wait")
		lone := spawn(t, "sleep", "60")

		st, err := port.StartScope(ctx, train("l-1", p))
		if err != nil {
			t.Fatal(err)
		}
		if st.ID != "l-1" {
			t.Errorf("state %+v", st)
		}
		if id, ok := port.ScopeOf(p.PID); !ok || id != "l-1" {
			t.Errorf("scope of the command: %q, %v", id, ok)
		}
		if id, ok := port.ScopeOf(os.Getpid()); ok {
			t.Errorf("the test process is in scope %q", id)
		}
		if id, ok := port.ScopeOf(lone.PID); ok {
			t.Errorf("a process outside the scope is in scope %q", id)
		}
		// Starting the same scope again changes nothing.
		if again, err := port.StartScope(ctx, train("l-1", p)); err != nil || again != st {
			t.Errorf("second start: %+v, %v", again, err)
		}
		if _, err := port.StartScope(ctx, train("l-1", lone)); !errors.Is(err, ErrInUse) {
			t.Errorf("a scope of this name with another process: %v", err)
		}
		scopes, err := port.Scopes(ctx)
		if err != nil || !slices.Equal(scopes, []ScopeState{st}) {
			t.Errorf("scopes %+v, %v", scopes, err)
		}
		release()
		var ps []Process
		eventually(t, "the command and its two children are members", func() bool {
			var err error
			ps, err = port.Members(ctx, "l-1")
			return err == nil && len(ps) == 3 && slices.Contains(ps, p)
		})
		if err := port.RemoveSlice(ctx, SliceName{Tenant: "vision"}); !errors.Is(err, ErrInUse) {
			t.Errorf("removing a slice in use: %v", err)
		}
		empty := make(chan error, 1)
		go func() { empty <- port.WaitEmpty(ctx, "l-1") }()
		if err := port.KillScope(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		if err := <-empty; err != nil {
			t.Errorf("waiting for the end: %v", err)
		}
		for _, m := range ps {
			if procfs.Alive(m.PID, m.Start) {
				t.Errorf("pid %d is alive after its scope was killed", m.PID)
			}
		}
		if _, err := port.Members(ctx, "l-1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("members of a scope that ended: %v", err)
		}
		if err := port.KillScope(ctx, "l-1"); err != nil {
			t.Errorf("killing a scope that has ended: %v", err)
		}
		if err := port.RemoveSlice(ctx, SliceName{Tenant: "vision"}); err != nil {
			t.Error(err)
		}
		left, err := port.Slices(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range left {
			if s.Name.Tenant != "" {
				t.Errorf("slice %s is left", s.Name)
			}
		}
	})
}

func TestPortWaitEmptySeesTheNaturalEnd(t *testing.T) {
	eachAdapter(t, func(t *testing.T, port Port) {
		ctx := within(t, 20*time.Second)
		p := spawn(t, "sleep", "0.2")
		if _, err := port.StartScope(ctx, train("l-1", p)); err != nil {
			t.Fatal(err)
		}
		if err := port.WaitEmpty(ctx, "l-1"); err != nil {
			t.Fatal(err)
		}
		if procfs.Alive(p.PID, p.Start) {
			t.Error("the scope was empty while its process was alive")
		}
		if scopes, err := port.Scopes(ctx); err != nil || len(scopes) != 0 {
			t.Errorf("scopes left: %v, %v", scopes, err)
		}
		if err := port.WaitEmpty(ctx, "l-1"); err != nil {
			t.Errorf("waiting for a scope that has ended: %v", err)
		}
	})
}

func TestPortWaitEmptyEndsWithItsContext(t *testing.T) {
	eachAdapter(t, func(t *testing.T, port Port) {
		if _, err := port.StartScope(t.Context(), train("l-1", spawn(t, "sleep", "60"))); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := port.WaitEmpty(within(t, 20*time.Millisecond), "l-1"); err == nil {
			t.Error("a scope with a process was reported empty")
		}
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("it returned after %v", d)
		}
	})
}

func TestPortRefuses(t *testing.T) {
	eachAdapter(t, func(t *testing.T, port Port) {
		ctx := t.Context()
		p := spawn(t, "sleep", "60")
		ended := Process{PID: p.PID, Start: p.Start + 1}
		if _, err := port.StartScope(ctx, train("l-1", ended)); !errors.Is(err, procfs.ErrNoProcess) {
			t.Errorf("a process of another start time: %v", err)
		}
		if _, err := port.Recover(ctx, train("l-1", ended)); !errors.Is(err, ErrNotFound) {
			t.Errorf("recovering a scope that never existed: %v", err)
		}
		for _, id := range []string{"", "..", "a/b", "-x", "a\nb"} {
			if _, err := port.StartScope(ctx, train(id, p)); err == nil {
				t.Errorf("a scope was named %q", id)
			}
		}
		for _, n := range []SliceName{{Grant: "g"}, {Tenant: ".."}, {Tenant: "a/b"}, {Tenant: "t", Grant: "../x"}} {
			if _, err := port.SetSlice(ctx, Slice{Name: n}); err == nil {
				t.Errorf("a slice was named %+v", n)
			}
		}
		if err := port.RemoveSlice(ctx, SliceName{Tenant: "none"}); err != nil {
			t.Errorf("removing no slice: %v", err)
		}
	})
}

func TestPortSetSliceTwiceWritesOnce(t *testing.T) {
	eachAdapter(t, func(t *testing.T, port Port) {
		ctx := t.Context()
		want := Slice{
			Name: SliceName{Tenant: "vision", Grant: "train"},
			Limits: Limits{
				CPUQuota: new(800.0), CPUWeight: new(uint64(200)), MemoryMax: new(uint64(64 << 30)), TasksMax: new(uint64(4096)),
			},
			Closed: true, Devices: []DeviceRule{{Type: 'c', Major: 195, Minor: 0, Access: "rw"}},
		}
		if _, err := port.SetSlice(ctx, want); err != nil {
			t.Fatal(err)
		}
		if wrote, err := port.SetSlice(ctx, want); err != nil || wrote {
			t.Errorf("the second time: wrote %v, %v", wrote, err)
		}
		states, err := port.Slices(ctx)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(states, func(s SliceState) bool { return s.Name == want.Name })
		if i < 0 {
			t.Fatalf("no slice %s in %+v", want.Name, states)
		}
		if expect := port.Info().Expect(want); !states[i].Matches(expect) {
			t.Errorf("read back %+v, expected %+v", states[i], expect)
		}
		if one, err := port.Slice(ctx, want.Name); err != nil || !reflect.DeepEqual(one, states[i]) {
			t.Errorf("read alone it is %+v, %v; among all %+v", one, err, states[i])
		}
		if _, err := port.Slice(ctx, SliceName{Tenant: "none"}); !errors.Is(err, ErrNotFound) {
			t.Errorf("a missing slice: %v", err)
		}
	})
}
