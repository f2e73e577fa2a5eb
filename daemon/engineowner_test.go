package daemon

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/scenarios"
)

// ownedBySlurm is a node whose GPUs Slurm places on: instances, and a shared one.
const ownedBySlurm = `version: v1
node: {enforce: on, isolation: {logins: open}}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 3g.20gb]}, owner: slurm}
  - {select: {index: 1}, mode: timeslice, owner: slurm}
tenants:
  - name: red
    grants:
      - {name: part, mig: 3g.20gb}
      - {name: dev, timeslice: {share: 20%, gpu_memory: 8GiB}, max_leases: 4}
`

// The GPUs of an engine are carved as the spec says, take its keyed leases and no others, and a change that its jobs are in the way of is
// refused with the commands that drain, change and resume.
func TestTheGPUsOfAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "a100-40"})
		w.startDaemon()
		w.mustApply(ownedBySlurm)
		if names := w.namesOf(0); len(names) != 2 {
			t.Errorf("the layout is %q", names)
		}
		if _, why := w.place(); !strings.Contains(why, "slurm places the leases") {
			t.Errorf("a request of no engine: %q", why)
		}
		job := func(key string) (lease.Lease, error) {
			k, err := w.table.Submit(lease.Request{
				Tenant: "red", Admin: true, Kind: "timeslice", User: "alice", Origin: lease.OriginAttached,
				Engine: &lease.Engine{Key: key, Account: "physics"},
			})
			if err != nil {
				return lease.Lease{}, err
			}
			l, _ := w.table.Get(k.ID())
			return l, nil
		}
		if _, err := job("kubernetes:uid"); err == nil || !strings.Contains(err.Error(), "slurm places the leases") {
			t.Errorf("another engine: %v", err)
		}
		l, err := job("slurm:lab:1:0")
		if err != nil {
			t.Fatal(err)
		}
		w.converger.Pass(w.tasks.Context())
		if _, err := os.Stat(filepath.Join(w.dir, "cdi", devicepolicy.CdiPrefix+"red.dev.json")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("containers of the grant get the devices of the job: %v", err)
		}
		s := w.statusNow()
		if s.GPUs[1].Owner != api.OwnerSlurm || len(s.Leases) != 1 || s.Leases[0].Engine == nil ||
			s.Leases[0].Engine.Key != "slurm:lab:1:0" ||
			s.Leases[0].User != "alice" ||
			s.Leases[0].Engine.Account != "physics" {
			t.Errorf("the status has %+v, %+v", s.GPUs[1], s.Leases)
		}

		whole := strings.Replace(ownedBySlurm, "index: 1}, mode: timeslice", "index: 1}, mode: exclusive", 1)
		_, _, refusal := w.apply(whole, "?file=node.yaml")
		if refusal == nil || refusal.Kind != api.KindInUse || !strings.Contains(refusal.Message, l.ID) {
			t.Fatalf("a change of the GPU of a job: %v", refusal)
		}
		for _, part := range []string{
			"'gpushare apply -f node.yaml --drain'", "'gpushare apply -f node.yaml'", "'scontrol update nodename=", " state=drain reason=gpushare'", " state=resume'",
		} {
			if !strings.Contains(refusal.Hint, part) {
				t.Errorf("%q is not in the hint %q", part, refusal.Hint)
			}
		}
		if strings.Contains(refusal.Hint, "  ") || !strings.Contains(refusal.Hint, "wait until they end, or use --force") {
			t.Errorf("the hint of the refusal itself is not there, or has a gap: %q", refusal.Hint)
		}
		_, _, refusal = w.apply(whole, "?file=generation+1")
		if refusal == nil || strings.Contains(refusal.Hint, "--drain") ||
			!strings.Contains(refusal.Hint, "then 'gpushare rollback 1' when") {
			t.Errorf("rollback has no --drain: %+v", refusal)
		}
		if _, ok := w.table.Get(l.ID); !ok {
			t.Error("the job has no lease any more")
		}

		fewer := strings.Replace(ownedBySlurm, "[3g.20gb, 3g.20gb]", "[3g.20gb]", 1)
		var res api.ApplyResult
		refusal = w.do(http.MethodPut, "/v1/spec", fewer, nil)
		if refusal == nil || refusal.Kind != api.KindInUse || !slices.Equal(refusal.Engines, []string{"slurm"}) ||
			!strings.Contains(refusal.Message, "gpushare does not see") || !strings.Contains(refusal.Hint, "--drain'") {
			t.Errorf("a change of GPUs that a job may have: %+v", refusal)
		}
		if refusal := w.do(http.MethodPut, "/v1/spec?check=1&drained=slurm", fewer, &res); refusal != nil {
			t.Fatal(refusal)
		}
		if !slices.Equal(res.Plan.Engines, []string{"slurm"}) ||
			!strings.Contains(
				strings.Join(res.Plan.Warnings, "\n"),
				"fewer MIG instances from then on (3g.20gb: 2, then 1): Slurm drains",
			) {
			t.Errorf("the plan: engines %q, warnings %q", res.Plan.Engines, res.Plan.Warnings)
		}
		more := strings.Replace(ownedBySlurm, "share: 20%", "share: 30%", 1)
		res = api.ApplyResult{}
		if refusal := w.do(
			http.MethodPut,
			"/v1/spec?check=1",
			more,
			&res,
		); refusal != nil || len(res.Plan.Engines) > 0 ||
			len(res.Plan.Warnings) > 1 {
			t.Errorf("a change that disturbs no job: %v, engines %q, warnings %q", refusal, res.Plan.Engines, res.Plan.Warnings)
		}
		w.mustApply(strings.ReplaceAll(ownedBySlurm, ", owner: slurm", ", owner: slurm, share_with: [local]"))
		k, why := w.place()
		if why != "" {
			t.Fatalf("a request of no engine where the GPU is shared: %q", why)
		}
		kubernetes := w.mustCheck(strings.ReplaceAll(ownedBySlurm, "owner: slurm", "owner: kubernetes, share_with: [local]"))
		said := strings.Join(kubernetes.Warnings, "\n")
		if !strings.Contains(said, "lease "+l.ID+" (alice) stays on GPU 1 until it ends: kubernetes") || strings.Contains(said, k.ID()) {
			t.Errorf("the leases of others: %q", said)
		}
		if alone := w.mustCheck(ownedBySlurm); !strings.Contains(strings.Join(alone.Warnings, "\n"), "lease "+k.ID()) {
			t.Errorf("the lease of no engine: %q", alone.Warnings)
		}
	})
}

// mustCheck is the plan of a spec.
func (w *virtual) mustCheck(spec string) api.Plan {
	w.Helper()
	var res api.ApplyResult
	if refusal := w.do(http.MethodPut, "/v1/spec?check=1", spec, &res); refusal != nil {
		w.Fatal(refusal)
	}
	return res.Plan
}

// What else changes the GPUs of an engine is refused as an apply is: a job may have one that it does not use.
func TestUnmanageAndRetryOfTheGPUsOfAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "a100-40"})
		w.startDaemon()
		w.mustApply(strings.Replace(ownedBySlurm, "[3g.20gb, 3g.20gb]", "[3g.20gb]", 1))
		unmanage, retry := "/v1/unmanage?all=1", "/v1/gpus/0/retry?allow-reset=1"
		refused := func(target, command string) {
			t.Helper()
			refusal, by := w.do(http.MethodPost, target, "", nil), "then '"+command+"' when its jobs have ended"
			if refusal == nil || refusal.Kind != api.KindInUse || !slices.Equal(refusal.Engines, []string{"slurm"}) ||
				!strings.Contains(refusal.Hint, by) || strings.Contains(refusal.Hint, "--drain'") {
				t.Errorf("%s: %+v", command, refusal)
			}
		}
		refused(unmanage, "gpushare unmanage --all")
		var res api.ApplyResult
		refusal := w.do(http.MethodPost, unmanage+"&check=1", "", &res)
		if refusal != nil || !slices.Equal(res.Plan.Engines, []string{"slurm"}) {
			t.Errorf("the plan: %v, engines %q", refusal, res.Plan.Engines)
		}
		if refusal := w.do(http.MethodPost, retry, "", nil); refusal != nil {
			t.Errorf("a retry that changes nothing: %+v", refusal)
		}

		removeByHand(t, w)
		if err := errors.Join(setMode(w, false), w.node.ResetGPU("0", os.Getpid())); err != nil {
			t.Fatal(err)
		}
		w.waitIdle(nil)
		resets := w.truth()[0].Resets
		refused(retry, "gpushare gpu retry 0")
		if g := w.truth()[0]; g.Resets != resets {
			t.Error("the GPU was reset")
		}
		if refusal := w.do(http.MethodPost, retry+"&drained=slurm", "", nil); refusal != nil {
			t.Errorf("a retry after a drain: %+v", refusal)
		}
		w.waitIdle(nil)
		if names := w.namesOf(0); len(names) != 1 {
			t.Errorf("the layout is %q after the retry", names)
		}
		if refusal := w.do(http.MethodPost, unmanage+"&drained=slurm", "", nil); refusal != nil {
			t.Errorf("unmanage after a drain: %+v", refusal)
		}
		w.waitIdle(nil)
		if names := w.namesOf(0); len(names) != 0 {
			t.Errorf("the layout is %q after unmanage", names)
		}
	})
}
