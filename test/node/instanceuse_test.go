package node

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

// counting is a node whose first GPU counts the use of its instances, and whose second one does not.
const counting = `driver: "580"
monitors_block_reset: true
gpus:
  - {model: H100-SXM5-80GB, mig: true}
  - {model: A100-SXM4-40GB, mig: true}
`

const countingSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [1g.10gb, 1g.10gb]}}
  - {select: {index: 1}, mode: mig, mig: {layout: [1g.5gb]}}
tenants:
  - name: red
    grants:
      - {name: ten, mig: 1g.10gb, max_leases: 2}
      - {name: five, mig: 1g.5gb}
`

// Where the GPU counts it, the use of each MIG instance is in the status, in metrics, in the account and in 'idle': of a busy lease, of an
// idle one, and of neither on a GPU that does not count. An instance that is read is removed as any other.
func TestUseOfInstances(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, counting)
	apply(t, n, countingSpec)
	_, busy := begin(t, n, "red", "ten", n.Burn("--memory", "64MiB", "--kernel", "5ms", "--queue", "100", "--seconds", "600")...)
	_, idle := begin(t, n, "red", "ten", n.Burn("--memory", "64MiB", "--hold")...)
	_, unknown := begin(t, n, "red", "five", n.Burn("--memory", "64MiB", "--hold")...)
	s := awaitStatus(t, n, "the use of instances is not reported", func(s *api.Status) bool {
		b, i := findLease(s, busy), findLease(s, idle)
		return b != nil && i != nil && b.Use != nil && i.Use != nil && b.Use.Busy != nil && i.Use.Busy != nil && *b.Use.Busy > 50 &&
			b.IdleSeconds != nil && i.IdleSeconds != nil && *i.IdleSeconds > 0
	})
	if b, i := findLease(s, busy), findLease(s, idle); *i.Use.Busy > 1 || *b.IdleSeconds > 0 {
		t.Errorf("the idle lease has %+v, and the busy one is idle for %v s", i.Use, *b.IdleSeconds)
	}
	if l := findLease(s, unknown); l == nil || l.Use != nil || l.IdleSeconds != nil {
		t.Errorf("a GPU that does not count has %+v", l)
	}
	for _, in := range s.GPUs[0].MIG.Instances {
		if in.Use == nil {
			t.Errorf("the instance at %d has no use", in.Placement.Start)
		}
	}
	list, err := n.Client().Idle(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{busy: api.UseBusy, idle: api.UseIdle, unknown: api.UseUnknown} {
		i := slices.IndexFunc(list.Uses, func(u api.IdleUse) bool { return u.Lease == id })
		if i < 0 || list.Uses[i].State != want || want == api.UseUnknown && !strings.Contains(list.Uses[i].Reason, "older than Hopper") {
			t.Errorf("%s is %+v, want %s", id, list.Uses, want)
		}
	}
	if r := n.CLI(soon(t), "metrics"); strings.Count(r.Out, "\ngpushare_mig_instance_utilization_ratio{") != 2 {
		t.Errorf("the metrics are %s", r.Out)
	}
	if r := n.CLI(soon(t), "lease", "stop", "--all", "--yes"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	// The account has the busy time, and none of the GPU that does not count.
	var account api.Usage
	if r := n.CLI(
		soon(t),
		"usage",
		"--since",
		"1h",
		"--by",
		"lease",
		"--json",
	); r.Code != 0 ||
		json.Unmarshal([]byte(r.Out), &account) != nil {
		t.Fatalf("usage: %+v", r)
	}
	for id, check := range map[string]func(*api.UsageRow) bool{
		busy:    func(u *api.UsageRow) bool { return u.BusyMeasuredSeconds > 0 && u.BusySeconds > 0 },
		idle:    func(u *api.UsageRow) bool { return u.BusyMeasuredSeconds > 0 && u.BusySeconds == 0 },
		unknown: func(u *api.UsageRow) bool { return u.BusyMeasuredSeconds == 0 },
	} {
		i := slices.IndexFunc(account.Rows, func(u api.UsageRow) bool { return u.Lease == id })
		if i < 0 || !check(&account.Rows[i]) {
			t.Errorf("the account of %s: %+v", id, account.Rows)
		}
	}
	apply(t, n, strings.Replace(countingSpec, "[1g.10gb, 1g.10gb]", "[1g.10gb, 2g.20gb]", 1))
}
