package control

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/mps"
)

// silent polls until connections are found that keep others out, as the daemon does, each of one process: one that another test starts has
// the connection too between its fork and its exec.
func (f *fixture) silent(t *testing.T) []Peer {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); f.clock.pass(silentAfter) {
		found, err := f.SilentPeers(t.Context(), deviceA)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 && !slices.ContainsFunc(found, func(p Peer) bool { return len(p.Processes) > 1 }) {
			return found
		}
	}
	t.Fatal("no connection of one process was found")
	return nil
}

// A process that connects and says nothing blocks all others; it is found with its user, and with its end they are served again.
func TestASilentPeerIsFound(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			f := newFixtureOf(t, driver)
			f.start(t, mps.Settings{GPU: gpuA})
			f.running(t)
			c, err := dial(filepath.Join(f.layout(deviceA).tenant(), "control"))
			if err != nil {
				t.Fatal(err)
			}
			found := f.silent(t)
			self, err := procfs.Start(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			if len(found) != 1 || found[0].UID != os.Geteuid() || len(found[0].Processes) != 1 ||
				found[0].Processes[0].PID != os.Getpid() ||
				found[0].Processes[0].Start != self {
				t.Errorf("found %+v, want this process", found)
			}
			if found[0].Socket != filepath.Join(f.pipe(), "control") {
				t.Errorf("at socket %q", found[0].Socket)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if st := f.Await(t.Context(), deviceA); !st.Healthy() {
				t.Errorf("after its end: %+v", st)
			}
			f.clock.pass(time.Hour)
			if found, err := f.SilentPeers(t.Context(), deviceA); err != nil || len(found) > 0 {
				t.Errorf("after its end it found %+v, %v", found, err)
			}
		})
	}
}

// A connection whose process cannot be found is ended at the daemon's end.
func TestAConnectionIsEndedAtTheDaemonsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(t, mps.Settings{GPU: gpuA})
	f.running(t)
	c, err := dial(filepath.Join(f.layout(deviceA).tenant(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	found := f.silent(t)
	if err := found[0].Disconnect(); err != nil {
		t.Fatal(err)
	}
	if st := f.Await(t.Context(), deviceA); !st.Healthy() {
		t.Errorf("after it was ended: %+v", st)
	}
}

// Clients that are served are no suspects, however long they stay.
func TestClientsAreNoSilentPeers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(t, mps.Settings{GPU: gpuA})
	env := f.environment(t, mps.Limits{})
	p := f.burn(t, env, "--gpu", string(gpuA), "--hold")
	f.running(t)
	for range 5 {
		f.clock.pass(time.Minute)
		if found, err := f.SilentPeers(t.Context(), deviceA); err != nil || len(found) > 0 {
			t.Errorf("found %+v, %v", found, err)
		}
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // It was killed.
}
