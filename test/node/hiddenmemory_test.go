package node

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// A driver may report the memory of processes as not available, as on hosts where the kernel keeps it. What is not known is compared
// with no limit: nothing says that the limit is enforced, and the doctor fails, because the spec promises it.
func TestMemoryThatTheDriverDoesNotReport(t *testing.T) {
	t.Parallel()
	n := start(t, "driver: \"580\"\nhide_process_memory: true\ngpus: [{model: A100-SXM4-40GB, count: 3}]\n")
	apply(t, n, limitedByDefault)
	_, id := begin(t, n, "red", "part", n.Burn("--memory", "10GiB", "--hold")...)
	awaitStatus(t, n, "its memory is not unknown", func(s *api.Status) bool {
		l := findLease(s, id)
		return l != nil && l.GPUMemory != nil && l.GPUMemory.Unknown
	})
	l := findLease(status(t, n), id)
	if !strings.Contains(l.GPUMemory.Reason, "what it uses is not known") || l.GPUMemory.Qualifier() != " (not enforced)" {
		t.Errorf("its limit is %+v", l.GPUMemory)
	}
	for args, says := range map[string]string{
		"status":           "unknown of 8 GiB (not enforced)",
		"lease list":       "unknown of 8 GiB (not enforced)",
		"lease show " + id: "what it uses is not known",
		"explain " + id:    "what it uses is not known",
	} {
		r := n.CLI(soon(t), strings.Fields(args)...)
		if r.Code != 0 || !strings.Contains(r.Out, says) || strings.Contains(r.Out, "0 are used") {
			t.Errorf("%s says no %q, and exits with %d:\n%s%s", args, says, r.Code, r.Out, r.Err)
		}
	}
	const check = "fail  GPU memory: 8 GiB of lease "
	if r := n.CLI(
		soon(t),
		"doctor",
	); r.Code != api.ExitDegraded ||
		!strings.Contains(r.Out, check+id+" is not enforced: what it uses is not known") {
		t.Errorf("doctor exits with %d:\n%s", r.Code, r.Out)
	}
	if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := n.CLI(soon(t), "doctor"); strings.Contains(r.Out, check) {
		t.Errorf("without the lease the doctor says\n%s", r.Out)
	}
}
