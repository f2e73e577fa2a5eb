//go:build engines

package engines

import (
	"strings"
	"testing"
	"time"
)

// The node is shut down with pods and booted: the kubelet, the plug-in and gpushared come back as their units say, the pods run again on the
// GPUs of their claims, and nothing of the boot before is left.
func (l *lab) nodeReboots(t *testing.T) {
	names := map[string]string{"boot-mig": "mig-3g", "boot-part": "part-30g"}
	before := map[string]*pod{}
	for name, template := range names {
		l.workingThat(t, name, "Always", template, "8GiB")
		before[name] = l.wants(t, name, running)
	}
	t.Log(l.node.do(t, time.Minute, "leases; placements"))
	l.node.powerOff(t)
	began := time.Now()
	l.node = boot(t, "kubernetes-again", l.hardware)
	l.node.do(t, 5*time.Minute, "until_true 240 answers")
	for name, was := range before {
		p := l.wants(t, name, func(p *pod) bool {
			return running(p) && len(p.Status.ContainerStatuses) == 1 &&
				p.Status.ContainerStatuses[0].ContainerID != was.Status.ContainerStatuses[0].ContainerID
		})
		if p.Metadata.UID != was.Metadata.UID {
			t.Errorf("pod %s is another one", name)
		}
		t.Logf("pod %s runs again %.0f s after the power was on", name, time.Since(began).Seconds())
		l.node.do(t, 3*time.Minute, "until_true 120 one_lease_of "+p.Metadata.UID)
		l.node.do(t, 3*time.Minute, "until_true 120 works_again "+name)
	}
	l.opensOnly(t, "boot-mig", gpus[0])
	l.opensOnly(t, "boot-part", gpus[1])
	state := l.node.do(t, time.Minute, "leases; placements; find /run/cdi -name 'gpushare.dev-claim_*'; gpushare lease list; conditions")
	t.Log(state)
	if n := l.node.do(t, time.Minute, "leases | grep -c . || true"); n != "2" {
		t.Errorf("there are %s leases, not one for each of two pods:\n%s", n, state)
	}
	if n := l.node.do(t, time.Minute, "placements | grep -c . || true"); n != "1" {
		t.Errorf("there are %s instances, not the one of a pod:\n%s", n, state)
	}
	if n := strings.Count(state, "/run/cdi/"); n != 2 {
		t.Errorf("there are %d CDI files, not one for each of two claims:\n%s", n, state)
	}
	l.claimant(t, "boot-new", "mig-1g")
	l.wants(t, "boot-new", running)
	for _, name := range []string{"boot-mig", "boot-part", "boot-new"} {
		l.remove(t, name)
	}
	l.nothingLeft(t)
}
