package converge

import (
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

// A fault is reported once, with the leases of processes that have ended when it is read.
func TestMPSFaultIsReportedOnce(t *testing.T) {
	var f mpsFaults
	var events []api.Event
	running := map[int]string{7: "red-1", 8: "blue-1"}
	observed := func(st mps.State) {
		node := &observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-a", Index: 3}}, MPS: &st}}}
		f.report(node, func(pid int) (string, bool) { id, ok := running[pid]; return id, ok }, func(e api.Event) { events = append(events, e) })
	}
	observed(mps.State{Clients: []int{7, 8}})
	running = nil
	fault := &mps.Fault{Since: time.Unix(1e9, 0), Culprit: 7, Victims: []int{8, 9}}
	observed(mps.State{Fault: fault})
	observed(mps.State{Fault: fault})
	if len(events) != 1 || events[0].Kind != "mps.fault" || events[0].GPU != "GPU-a" {
		t.Fatalf("events: %+v", events)
	}
	const want = "GPU 3: pid 7 (lease red-1) had a fatal fault under MPS; these lost their context: pid 8 (lease blue-1), pid 9"
	if events[0].Message != want {
		t.Errorf("it says %q, want %q", events[0].Message, want)
	}
	observed(mps.State{Fault: &mps.Fault{Since: time.Unix(2e9, 0)}})
	if len(events) != 2 || !strings.Contains(events[1].Message, "does not name it") {
		t.Errorf("the next fault: %+v", events)
	}
}
