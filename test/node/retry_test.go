package node

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

// A GPU that answers again is used after a retry, while another GPU is still unresponsive.
func TestRetryWithAnUnresponsiveGPU(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := startHasty(t, quick)
	apply(t, n, shared)
	hang := []string{"fault", "add", "DeviceGetMemoryInfo*", "hang", "--gpu", "3", "--times", "-1"}
	for _, order := range [][]string{{"fault", "add", "DeviceGetMemoryInfo*", "lose", "--gpu", "2"}, hang} {
		if err := n.Ctl(soon(t), nil, order...); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Client().Reload(soon(t)); err != nil {
		t.Fatal(err)
	}
	s := awaitStatus(
		t, n, "the unresponsive GPUs are not reported",
		func(s *api.Status) bool { return s.GPUs[2].State == "lost" && s.GPUs[3].State == "stuck" },
	)
	if s.GPUs[0].State != "ok" {
		t.Errorf("GPU 0 is %s: %s", s.GPUs[0].State, s.GPUs[0].Reason)
	}
	if r := n.CLI(soon(t), "gpu", "retry", "3"); r.Code == 0 {
		t.Error("a GPU that still hangs is used")
	}
	if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "gpu", "retry", "3"); r.Code != 0 {
		t.Errorf("gpu retry exits with %d: %s", r.Code, r.Err)
	}
	s = status(t, n)
	if s.GPUs[3].State != "ok" || s.GPUs[2].State != "lost" {
		t.Errorf("GPU 3 is %s: %s, and GPU 2 %s", s.GPUs[3].State, s.GPUs[3].Reason, s.GPUs[2].State)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 0 {
		t.Errorf("no lease gets the GPU after the retry: %s", r.Err)
	}
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "part", "--", "true"); r.Code != 125 {
		t.Errorf("a lease gets the lost GPU: exit code %d: %s", r.Code, r.Err)
	}
}
