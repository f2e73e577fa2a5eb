//go:build engines

package engines

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Two pods with hostIPC have parts of a GPU in MPS mode, with the control daemon of the virtual node: they are its clients, with the limits
// that they claimed. The one that allocates more memory is refused that, and the other one goes on.
func (l *lab) partsOfMPS(t *testing.T) {
	t.Log(l.node.do(t, 5*time.Minute, "gpushare apply -f /opt/lab/guest/mps.yaml 2>&1"))
	l.published(t, "a GPU in MPS mode", func(all map[string]device) bool { return clean(all, "gpu-3-clients") })
	client := func(name, memory string) {
		l.claimantOf(t, name, "Never", "resourceClaimTemplateName: mps-20g", "hostIPC: true\n", append(slices.Clone(burn), memory)...)
	}
	client("mps-kept", "8GiB")
	kept := l.works(t, "mps-kept")
	before := l.node.do(t, time.Minute, "processes_of "+kept)
	l.opensOnly(t, "mps-kept", gpus[3])
	l.node.do(t, 2*time.Minute, "until_true 60 one_client_of_mps")
	t.Log(l.node.do(t, time.Minute, "gpushare lease list; gpushare status; conditions; log_of mps-kept | grep -v '^open'"))
	client("mps-over", "25GiB")
	l.wants(t, "mps-over", func(p *pod) bool { return p.has("Failed") })
	said := l.node.do(t, time.Minute, "log_of mps-over | tail -n 2")
	t.Log(said)
	if !strings.Contains(said, "out of") {
		t.Errorf("the pod with too much was not refused memory: %s", said)
	}
	l.goesOn(t, kept, before, "the end of the other pod")
	l.remove(t, "mps-over")
	l.remove(t, "mps-kept")
	l.nothingLeft(t)
	t.Log(l.node.do(t, 5*time.Minute, "gpushare apply -f /opt/lab/guest/kubernetes.yaml --drained kubernetes 2>&1"))
	l.published(t, "no GPU in MPS mode", func(all map[string]device) bool {
		_, there := all["gpu-3-clients"]
		return !there && clean(all, both...)
	})
}
