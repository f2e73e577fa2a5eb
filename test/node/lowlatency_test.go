package node

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// services has three services with latency: low on GPU 2, of which two fit, and training.
const services = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: timeslice}
tenants:
  - name: red
    grants:
      - {name: chat, timeslice: {share: 50%}, latency: low, gpus: {index: 2}}
  - name: blue
    grants:
      - {name: chat, timeslice: {share: 40%}, latency: low, gpus: {index: 2}}
  - name: green
    grants:
      - {name: chat, timeslice: {share: 30%}, latency: low, gpus: {index: 2}}
      - {name: train, timeslice: {share: 100%}, gpus: {index: 2}}
`

// More leases with latency: low than fit on a GPU wait or are refused with what is left; reserved ones are refused with the spec.
func TestLowLatencyAdmission(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	reserved := strings.ReplaceAll(services, "latency: low,", "latency: low, reserved: true,")
	for name, args := range map[string][]string{"apply": {"apply", "-f", "-"}, "plan": {"plan", "-f", "-"}, "validate": {"spec", "validate", "-"}} {
		r := n.CLIIn(soon(t), reserved, args...)
		if want := map[bool]int{true: api.ExitUsage, false: api.ExitInfeasible}[name == "validate"]; r.Code != want ||
			!strings.Contains(r.Err, "latency: low") || !strings.Contains(r.Err, "80%") ||
			!strings.Contains(r.Err, "tenants[1].grants[0].timeslice.share: the reserved grants") {
			t.Errorf("%s exits with %d: %s%s", name, r.Code, r.Out, r.Err)
		}
	}
	apply(t, n, services)
	red, id := begin(t, n, "red", "chat", "sleep", "60")
	begin(t, n, "green", "train", "sleep", "60")
	r := n.CLI(soon(t), "run", "-q", "-t", "blue", "--", "true")
	if r.Code != 125 ||
		!strings.Contains(r.Err, "GPU 2 has 30% of its time left for grants with latency: low, which may have 80% together") {
		t.Errorf("40%% next to 50%%: run exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	begin(t, n, "green", "chat", "sleep", "60")
	for _, c := range []struct{ args, want []string }{
		{[]string{"explain", id}, []string{"50%, latency: low"}},
		{[]string{"lease", "show", id}, []string{"latency    low"}},
		{[]string{"tenant", "show", "red"}, []string{"50% of the time, latency: low"}},
	} {
		r := n.CLI(soon(t), c.args...)
		for _, want := range c.want {
			if r.Code != 0 || !strings.Contains(r.Out, want) {
				t.Errorf("%q exits with %d and does not say %q: %s%s", c.args, r.Code, want, r.Out, r.Err)
			}
		}
	}
	if l := status(t, n).Leases; len(l) != 3 || l[0].Share == nil || !hasLatency(l, "red", "low") || !hasLatency(l, "green", "low") {
		t.Errorf("the leases: %+v", l)
	}
	waiting, err := n.Run("-q", "-t", "blue", "--wait=1m", "--", "echo", "placed")
	if err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, n, "the request does not wait", func(s *api.Status) bool {
		for i := range s.Leases {
			if l := &s.Leases[i]; l.Tenant == "blue" && strings.Contains(l.Waiting, "latency: low") {
				return true
			}
		}
		return false
	})
	red.Kill()
	if err := waiting.AwaitLine(soon(t), "placed"); err != nil {
		t.Error(err)
	}
}

func hasLatency(leases []api.Lease, tenant, latency string) bool {
	for i := range leases {
		if l := &leases[i]; l.Tenant == tenant && l.Grant == "chat" {
			return l.Share != nil && l.Share.Latency == latency
		}
	}
	return false
}
