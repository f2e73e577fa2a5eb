package node

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// A GPU that has fallen off the bus is missing after the next load of the driver. Its user reads that, at once or while they wait, and its
// administrator since when.
func TestAMissingGPU(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared) // The grant whole may use GPU 3 alone.
	id := status(t, n).GPUs[3].UUID
	for _, order := range [][]string{{"gpu-remove", "3"}, {"driver-reload", "--force"}} {
		if err := n.Ctl(soon(t), nil, order...); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "the GPU is not missing", func(s *api.Status) bool {
		return len(s.GPUs) == 4 && s.GPUs[3].UUID == id && s.GPUs[3].State == "missing"
	})
	awaitStatus(t, n, "the instances that the load removed are not created again", func(s *api.Status) bool {
		return s.Node.Operation == "" && s.GPUs[0].MIG != nil && len(s.GPUs[0].MIG.Instances) == 2
	})
	const missing = "GPU 3 is missing: the driver does not find it"
	if r := n.CLI(soon(t), "run", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 125 || !strings.Contains(r.Err, missing) ||
		!strings.Contains(r.Err, "with --wait the request waits") {
		t.Errorf("a run exits with %d: %s", r.Code, r.Err)
	}
	waiting, err := n.Run("--wait", "-t", "red", "--grant", "whole", "--", "true")
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Kill()
	if err := waiting.AwaitLine(soon(t), missing); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"3", id} {
		r := n.CLI(soon(t), "gpu", "retry", name)
		if r.Code != api.ExitUnreachable || !strings.Contains(r.Err, "GPU 3 ("+id+")") ||
			!strings.Contains(r.Err, "it is missing: the driver has not found it since 2") ||
			!strings.Contains(r.Err, "lspci") {
			t.Errorf("gpu retry %s exits with %d: %s", name, r.Code, r.Err)
		}
	}
	if r := n.CLI(soon(t), "run", "-q", "--wait", "-t", "red", "--grant", "part", "--", "true"); r.Code != 0 {
		t.Errorf("another GPU takes no lease: %s", r.Err)
	}
	select {
	case <-waiting.Done():
		t.Errorf("the request does not wait: %s", waiting.Output())
	default:
	}
}
