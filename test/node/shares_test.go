package node

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/test/enumeration"
)

// heavy has two grants whose shares of GPU 2 are 160 % together; only one is reserved.
const heavy = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: [2, 3]}, mode: timeslice}
tenants:
  - name: red
    grants:
      - {name: part, timeslice: {share: 80%}, gpus: {index: 2}, reserved: true}
  - name: blue
    grants:
      - {name: part, timeslice: {share: 80%}, gpus: {index: 2}}
`

// Reserved shares above 100 % are refused; live ones are reported with what each grant gets.
func TestSharesAbove100(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, heavy)
	generation := status(t, n).Node.Generation

	reserved := replaced(t, heavy, "index: 2}}", "index: 2}, reserved: true}")
	for name, args := range map[string][]string{"apply": {"apply", "-f", "-"}, "plan": {"plan", "-f", "-"}, "validate": {"spec", "validate", "-"}} {
		r := n.CLIIn(soon(t), reserved, args...)
		want := api.ExitInfeasible
		if name == "validate" {
			want = api.ExitUsage
		}
		if r.Code != want ||
			!strings.Contains(r.Err, "tenants[1].grants[0].timeslice.share: the reserved grants on GPU 2 need 160% together") ||
			!strings.Contains(r.Err, ":11:") {
			t.Errorf("%s exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
	}
	if g := status(t, n).Node.Generation; g != generation {
		t.Fatalf("a refused spec is generation %d", g)
	}
	// With another GPU they fit, and with overcommit the sum is only reported.
	if r := n.CLIIn(
		soon(t), strings.ReplaceAll(reserved, "gpus: {index: 2}", "gpus: {index: [2, 3]}"), "apply", "--check", "-f", "-",
	); r.Code != 0 ||
		strings.Contains(r.Out+r.Err, "add up") {
		t.Errorf("on two GPUs: apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	const report = "shares on GPU 2 add up to 160%: while all have work, blue/part 80% gets 50%, red/part 80% gets 50%"
	if r := n.CLIIn(
		soon(t), replaced(t, reserved, "mode: timeslice}", "mode: timeslice, overcommit: true}"), "apply", "--check", "-f", "-",
	); r.Code != 0 ||
		!strings.Contains(r.Out+r.Err, report) {
		t.Errorf("with overcommit: apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}

	job, _ := begin(t, n, "blue", "part", "sleep", "60")
	has := func(s *api.Status) bool {
		for _, c := range s.Node.Conditions {
			if c.Kind == "shares" && c.Message == report && c.Hint != "" {
				return true
			}
		}
		return false
	}
	awaitStatus(t, n, "the condition is missing", has)
	if r := n.CLI(soon(t), "doctor"); !strings.Contains(r.Out, report) {
		t.Errorf("doctor does not report it:\n%s", r.Out)
	}
	if r := n.CLIIn(soon(t), heavy, "apply", "-f", "-"); r.Code != 0 || !strings.Contains(r.Out+r.Err, report) {
		t.Errorf("a second apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	job.Kill()
	awaitStatus(t, n, "the condition stays", func(s *api.Status) bool { return !has(s) })
}

// Leases of two seconds in four loops, of a grant of 10 %, leave the other grant its 90: what they used is owed by their user, and the next
// lease pays.
func TestShortLeasesInLoops(t *testing.T) {
	enumeration.Long(t)
	needsFreezer(t)
	n := start(t, twoGPUs)
	apply(t, n, `version: v1
node: {enforce: on}
gpus: [{select: {index: 0}, mode: timeslice}]
tenants:
  - {name: red, grants: [{name: part, timeslice: {share: 90%, gpu_memory: 8GiB}, gpus: {index: 0}}]}
  - {name: blue, grants: [{name: part, timeslice: {share: 10%, gpu_memory: 8GiB}, gpus: {index: 0}}]}
`)
	job, _ := begin(t, n, "red", "part", n.Burn("--memory", "64MiB", "--kernel", "5ms", "--queue", "10")...)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var loops sync.WaitGroup
	defer loops.Wait()
	for range 4 {
		loops.Go(func() {
			for ctx.Err() == nil {
				n.CLI(
					ctx,
					append(
						[]string{"run", "-t", "blue", "--"},
						n.Burn("--memory", "64MiB", "--kernel", "5ms", "--queue", "10", "--seconds", "2")...)...)
			}
		})
	}
	busy := func() float64 {
		a, err := server.Control(soon(t), n.Root(), server.Command{Do: server.DoStatus})
		if err != nil {
			t.Fatal(err)
		}
		return a.Status.GPUs[0].Busy[job.PID()]
	}
	window := time.NewTimer(25 * time.Second) // What the loops do is learned in it.
	defer window.Stop()
	<-window.C
	before, from := busy(), time.Now()
	<-ctx.Done()
	part := 100 * (busy() - before) / time.Since(from).Seconds()
	t.Logf("the grant of 90 %% has %.1f %% of the time", part)
	if part < 75 {
		t.Errorf("next to four loops of a grant of 10 %% it has %.1f %% of the time, due are 90", part)
	}
}
