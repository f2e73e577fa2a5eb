//go:build engines

package engines

import (
	"slices"
	"testing"
	"time"
)

// both are devices of the two GPUs of the lab that pods share: both placements of an instance, and a part.
var both = []string{"gpu-0-mig-3g-40gb-0", "gpu-0-mig-3g-40gb-4", "gpu-1-parts"}

// An administrator closes GPUs: pods on them go on as the same processes, others wait and run when the GPUs are opened again.
func (l *lab) cordonedGPUs(t *testing.T) {
	of := map[string]string{}
	for name, template := range map[string]string{"on-mig": "mig-3g", "on-part": "part-30g"} {
		of[name] = l.working(t, name, template, "8GiB")
	}
	processes := map[string]string{}
	for _, uid := range of {
		processes[uid] = l.node.do(t, time.Minute, "processes_of "+uid)
	}
	l.node.do(t, time.Minute, "gpushare gpu cordon 0 --reason 'its fan'; gpushare gpu cordon 1 --reason 'its fan'")
	l.published(t, "the GPUs are closed", func(all map[string]device) bool { return tainted(all, noSchedule, both...) })
	waiting := map[string]string{"waits-mig": "mig-3g", "waits-part": "part-10g"}
	for name, template := range waiting {
		l.claimant(t, name, template)
	}
	for name := range waiting {
		l.wants(t, name, (*pod).unschedulable)
	}
	for uid, was := range processes {
		l.goesOn(t, uid, was, "the closing of its GPU")
		l.node.do(t, time.Minute, "one_lease_of "+uid)
	}
	t.Log(l.kubectl(t, "get", "events", "--field-selector=reason=FailedScheduling"))
	l.node.do(t, time.Minute, "gpushare gpu uncordon 0; gpushare gpu uncordon 1")
	opened := time.Now()
	l.published(t, "the GPUs are open", func(all map[string]device) bool { return clean(all, both...) })
	for name := range waiting {
		l.wants(t, name, running)
		t.Logf("%s runs %.1f s after the GPUs were opened", name, time.Since(opened).Seconds())
	}
	for uid, was := range processes {
		l.goesOn(t, uid, was, "the opening of its GPU")
	}
	for _, name := range []string{"on-mig", "on-part", "waits-mig", "waits-part"} {
		l.remove(t, name)
	}
	l.nothingLeft(t)
}

// Two GPUs fall off the bus: their pods are evicted, the one whose program ends as well as the one that does nothing, and leave nothing.
// When the GPUs are back, pods that waited run on them.
func (l *lab) lostGPUs(t *testing.T) {
	l.claimant(t, "lost-mig", "mig-3g")
	l.wants(t, "lost-mig", running)
	l.workingThat(t, "lost-part", "Always", "part-30g", "8GiB")
	names := []string{"lost-mig", "lost-part"}
	l.node.do(t, time.Minute, "ctl xid 0 79; ctl xid 1 79")
	lost := time.Now()
	l.published(t, "the GPUs are lost", func(all map[string]device) bool { return tainted(all, noExecute, both...) })
	for _, name := range names {
		l.wants(t, name, func(p *pod) bool {
			if p == nil || p.Metadata.DeletionTimestamp == "" {
				return p == nil
			}
			if i := slices.IndexFunc(p.Status.Conditions, func(c condition) bool { return c.Type == "DisruptionTarget" }); i >= 0 {
				t.Logf("%s: %s: %s", name, p.Status.Conditions[i].Reason, p.Status.Conditions[i].Message)
			}
			return true
		})
		t.Logf("%s was evicted %.1f s after its GPU was lost", name, time.Since(lost).Seconds())
	}
	for _, name := range names {
		l.wants(t, name, func(p *pod) bool { return p == nil })
		t.Logf("%s was gone %.1f s after its GPU was lost", name, time.Since(lost).Seconds())
	}
	if out, err := l.node.try(3*time.Minute, "until_true 120 nothing_left_of_pods"); err != nil {
		rest, _ := l.node.try(time.Minute, "left_of_pods; journalctl -u gpushare-kubelet -u gpushared --no-pager -o cat | tail -n 30")
		t.Errorf("claims have left: %v: %s\n%s", err, out, rest)
	}
	t.Log(l.node.do(t, time.Minute, "gpushare status; conditions; placements"))
	again := map[string]string{"back-mig": "mig-3g", "back-part": "part-30g"}
	for name, template := range again {
		l.claimant(t, name, template)
	}
	for name := range again {
		l.wants(t, name, (*pod).unschedulable)
	}
	t.Log(l.node.do(t, 5*time.Minute, "booted_gpus"))
	back := time.Now()
	l.published(t, "the GPUs are back", func(all map[string]device) bool { return clean(all, both...) })
	for name := range again {
		l.wants(t, name, running)
		t.Logf("%s runs %.1f s after the GPUs were back", name, time.Since(back).Seconds())
	}
	l.opensOnly(t, "back-mig", gpus[0])
	l.opensOnly(t, "back-part", gpus[1])
	for name := range again {
		l.remove(t, name)
	}
	l.nothingLeft(t)
	if said := l.node.do(t, time.Minute, "conditions"); said != "" {
		t.Errorf("gpushared reports after that: %s", said)
	}
}
