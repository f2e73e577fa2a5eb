//go:build engines

package engines

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// several creates a pod of the claim that pods share, with a program that uses some GPU memory.
func (l *lab) several(t *testing.T, name, memory string) {
	t.Helper()
	l.claimantOf(t, name, "Never", "resourceClaimName: several-30g", "", append(slices.Clone(burn), memory)...)
}

// Two pods have one claim, which is one lease: what they use counts together. It goes on when one of them ends, another one joins, and if
// they use more than the claim has, each is ended and says so.
func (l *lab) severalPodsOfOneClaim(t *testing.T) {
	l.several(t, "several-one", "8GiB")
	one := l.works(t, "several-one")
	processes := l.node.do(t, time.Minute, "processes_of "+one)
	id := l.node.do(t, time.Minute, "lease_ids")
	// has checks that it is still that lease, and the only one.
	has := func(when string, cgroups, gib int) {
		t.Helper()
		if out, err := l.node.try(2*time.Minute, fmt.Sprintf("until_true 60 has_lease %s %d %d", id, cgroups, gib<<30)); err != nil {
			rest, _ := l.node.try(time.Minute, "leases; cat /run/lab/lease; journalctl -u gpushare-kubelet --no-pager -o cat | tail -n 20")
			t.Errorf("%s the pods have not lease %s alone, with %d cgroups and %d GiB: %s\n%s", when, id, cgroups, gib, out, rest)
		}
	}
	has("at first", 1, 8)
	l.several(t, "several-two", "12GiB")
	l.works(t, "several-two")
	has("with the second pod", 2, 20)
	for _, name := range []string{"several-one", "several-two"} {
		l.opensOnly(t, name, gpus[1])
	}
	t.Log(l.node.do(t, time.Minute, "leases; gpushare lease show "+id))
	l.remove(t, "several-two")
	l.goesOn(t, one, processes, "the end of the second pod")
	if now := l.node.do(t, time.Minute, "lease_ids"); now != id {
		t.Errorf("after the end of the second pod the lease is %q, before %q", now, id)
	}
	t.Log(l.node.do(t, time.Minute, "leases"))
	l.several(t, "several-over", "25GiB")
	for _, name := range []string{"several-one", "several-over"} {
		l.wants(t, name, func(p *pod) bool { return p.has("Failed") && p.exceeded() != "" })
		said := l.kubectl(t, "get", "events", "--field-selector=reason=GPUMemoryExceeded,involvedObject.name="+name)
		t.Log(said)
		if !strings.Contains(said, "GPUMemoryExceeded") {
			t.Errorf("pod %s has no event", name)
		}
	}
	for _, name := range []string{"several-one", "several-over"} {
		l.remove(t, name)
	}
	l.nothingLeft(t)
}

// exceeded is what the condition of a pod says that was ended for its GPU memory; empty: it has none.
func (p *pod) exceeded() string {
	for _, c := range p.Status.Conditions {
		if c.Type == "gpushare.dev/GPUMemoryExceeded" && c.Status == "True" {
			return c.Message
		}
	}
	return ""
}
