package node

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// An instance that the driver creates after the deadline of the call is gpushare's: the spec before is put in force again, the GPU is
// tried again when it answers, and nothing is left in the way of another layout.
func TestAnInstanceThatComesLate(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := newNode(t, quick)
	n.Settings = map[string]string{"driver_change_timeout": "3s"}
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	layout := func(names string) string {
		return "version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: 0}, mode: mig, mig: {layout: [" + names + "]}}\n"
	}
	apply(t, n, layout("1g.5gb"))
	if err := n.Ctl(soon(t), nil, "fault", "add", "GpuInstanceCreateComputeInstance*", "hang", "--gpu", "0"); err != nil {
		t.Fatal(err)
	}
	if r := n.CLIIn(soon(t), layout("1g.5gb, 3g.20gb"), "apply", "-f", "-"); r.Code != api.ExitDegraded {
		t.Fatalf("a change that hangs exits with %d: %s", r.Code, r.Err)
	}
	if r := n.CLI(soon(t), "plan", "--exit-code"); r.Code != api.ExitIncomplete {
		t.Errorf("plan --exit-code exits with %d while the GPU does not answer: %s%s", r.Code, r.Out, r.Err)
	}
	if r := n.CLI(soon(t), "rollback", "--force"); r.Code != 0 && r.Code != api.ExitDegraded {
		t.Fatalf("the rollback exits with %d: %s", r.Code, r.Err)
	}
	if err := n.Ctl(soon(t), nil, "fault", "clear"); err != nil {
		t.Fatal(err)
	}
	err := harness.Await(soon(t), 10*time.Millisecond, "the GPU does not answer again", func() (bool, error) {
		return n.CLI(soon(t), "gpu", "retry", "0").Code == 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "plan", "--exit-code"); r.Code != 0 {
		t.Errorf("plan --exit-code exits with %d after the retry: %s%s", r.Code, r.Out, r.Err)
	}
	m := status(t, n).GPUs[0].MIG
	if len(m.Instances) != 1 || m.Instances[0].Profile != "1g.5gb" || m.Instances[0].Foreign {
		t.Errorf("the GPU has %+v", m.Instances)
	}
	apply(t, n, layout("7g.40gb"))
}
