package control

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpushare/gpushare/mps"
)

// A connection on which nothing was said yet is found at once, and none when the daemon greets.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			f := newFixtureOf(t, driver)
			f.start(t, mps.Settings{GPU: gpuA})
			f.running(t)
			if found, err := f.Handshakes(t.Context(), deviceA); err != nil || len(found) > 0 ||
				!f.AwaitGreeting(t.Context(), deviceA, deadline) {
				t.Fatalf("before: %+v %v", found, err)
			}
			c, err := dial(filepath.Join(f.layout(deviceA).tenant(), "control"))
			if err != nil {
				t.Fatal(err)
			}
			found, err := f.Handshakes(t.Context(), deviceA)
			// The search for its process takes a second at most: on a busy host the next one finds it. A process that another test starts
			// has the connection too between its fork and its exec: the next search does not find it.
			for limit := time.Now().Add(deadline); err == nil && len(found) == 1 && len(found[0].Processes) != 1 && time.Now().Before(limit); {
				found, err = f.Handshakes(t.Context(), deviceA)
			}
			if err != nil || len(found) != 1 || len(found[0].Processes) != 1 || found[0].Processes[0].PID != os.Getpid() {
				t.Errorf("in a handshake: %+v %v", found, err)
			}
			if f.AwaitGreeting(t.Context(), deviceA, handshakeTimeout) {
				t.Error("it greets during a handshake")
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if !f.AwaitGreeting(t.Context(), deviceA, deadline) {
				t.Error("it does not greet after the handshake")
			}
		})
	}
}
