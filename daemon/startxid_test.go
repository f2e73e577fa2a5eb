package daemon

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/scenarios"
)

// An XID that the kernel logs after the daemon began and before it follows the log is reported: a unit that waits for the daemon may
// cause one at once.
func TestAnXIDWhileTheDaemonStartsIsReported(t *testing.T) {
	w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
	w.startDaemon()
	log, err := os.OpenFile(filepath.Join(w.root, "dev/kmsg"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.WriteString("4,1,2,-;NVRM: Xid (PCI:0000:07:00): 31, pid=5, name=python\n"); err != nil {
		t.Fatal(err)
	}
	events, unsubscribe := w.Events.Subscribe()
	defer unsubscribe()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	ended := make(chan struct{})
	go func() { defer close(ended); w.health.Run(ctx) }()
	defer func() { stop(); <-ended }()
	for {
		select {
		case e := <-events.C:
			if e.Kind != "gpu.xid" {
				continue
			}
			if list := w.XIDs.List(); len(list) != 1 || list[0].XID != 31 || e.GPU != string(w.ids[0]) {
				t.Errorf("the event is %+v, and the XIDs are %+v", e, list)
			}
			return
		case <-ctx.Done():
			t.Fatalf("it was not reported: %+v", slices.Clip(w.XIDs.List()))
		}
	}
}
