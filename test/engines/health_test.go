//go:build engines

package engines

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The status of a pod says how its device is: while the driver of its GPU requests a reset it is unhealthy, with the reason, and the pod
// goes on.
func (l *lab) healthOfDevices(t *testing.T) {
	of := map[string]string{"healthy-mig": "mig-3g", "healthy-part": "part-30g"}
	processes := map[string]string{}
	for name, template := range of {
		uid := l.working(t, name, template, "8GiB")
		processes[uid] = l.node.do(t, time.Minute, "processes_of "+uid)
	}
	each := func(health string) {
		t.Helper()
		began := time.Now()
		for name := range of {
			p := l.wants(t, name, func(p *pod) bool { return running(p) && p.healthIs(health) })
			t.Logf("%s after %.1f s: %+v", name, time.Since(began).Seconds(), p.Status.ContainerStatuses[0].AllocatedResourcesStatus)
		}
	}
	each("Healthy")
	l.node.do(t, time.Minute, "ctl sensor 0 recovery drain-and-reset; ctl sensor 1 recovery drain-and-reset")
	l.published(t, "the GPUs request a reset", func(all map[string]device) bool { return tainted(all, noSchedule, both...) })
	each("Unhealthy")
	for uid, was := range processes {
		l.goesOn(t, uid, was, "the request of its GPU")
	}
	l.node.do(t, time.Minute, "ctl sensor 0 recovery none; ctl sensor 1 recovery none")
	each("Healthy")
	l.published(t, "the GPUs are in order", func(all map[string]device) bool { return clean(all, both...) })
	for name := range of {
		l.remove(t, name)
	}
	l.nothingLeft(t)
}

// healthIs reports whether the one device of the pod is so. One that is not healthy has a message of the driver.
func (p *pod) healthIs(health string) bool {
	return len(p.Status.ContainerStatuses) == 1 &&
		slices.ContainsFunc(p.Status.ContainerStatuses[0].AllocatedResourcesStatus, func(s resourceStatus) bool {
			return len(s.Resources) == 1 && s.Resources[0].Health == health &&
				(health == "Healthy" || strings.Contains(s.Resources[0].Message, " is unhealthy: "))
		})
}
