//go:build engines

package engines

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Pods have whole GPUs, two or one, and open these alone; a further one waits. A command of gpushare run on such a GPU takes it off the
// offer, and gives it back.
func (l *lab) wholeGPUs(t *testing.T) {
	t.Log(l.node.do(t, 5*time.Minute, "gpushare apply -f /opt/lab/guest/whole.yaml 2>&1"))
	l.published(t, "two whole GPUs", func(all map[string]device) bool { return clean(all, "gpu-2", "gpu-3") })
	l.claimant(t, "whole-pair", "two-gpus", append(slices.Clone(burn), "60GiB")...)
	uid := l.works(t, "whole-pair")
	l.opensOnly(t, "whole-pair", gpus[2], gpus[3])
	l.node.do(t, time.Minute, "one_lease_of "+uid)
	t.Log(l.node.do(t, time.Minute, "leases; gpushare lease list"))
	l.claimant(t, "whole-one", "whole-gpu")
	l.wants(t, "whole-one", (*pod).unschedulable)
	l.remove(t, "whole-pair")
	l.wants(t, "whole-one", running)
	l.claimant(t, "whole-two", "whole-gpu")
	l.wants(t, "whole-two", running)
	l.claimant(t, "whole-three", "whole-gpu")
	l.wants(t, "whole-three", (*pod).unschedulable)
	first, second := l.wholeOf(t, "whole-one"), l.wholeOf(t, "whole-two")
	if first == second {
		t.Errorf("two pods have %s", first)
	}
	l.remove(t, "whole-one")
	l.wants(t, "whole-three", running)
	if third := l.wholeOf(t, "whole-three"); third != first {
		t.Errorf("the third pod has %s, and %s was free", third, first)
	}
	l.remove(t, "whole-two")
	l.remove(t, "whole-three")
	l.nothingLeft(t)

	l.node.do(t, 2*time.Minute, "start_job alice local whole --memory 1GiB --kernel 50ms --queue 2 --seconds 3000")
	l.published(t, "GPU 2 has a local lease", func(all map[string]device) bool {
		_, two := all["gpu-2"]
		return !two && clean(all, "gpu-3")
	})
	l.claimant(t, "whole-late", "two-gpus")
	l.wants(t, "whole-late", (*pod).unschedulable)
	l.node.do(t, 2*time.Minute, "end_job_of_user local whole")
	l.published(t, "GPU 2 is free", func(all map[string]device) bool { return clean(all, "gpu-3") && (len(all["gpu-2"].Name) > 0) })
	l.wants(t, "whole-late", running)
	l.opensOnly(t, "whole-late", gpus[2], gpus[3])
	l.remove(t, "whole-late")
	l.nothingLeft(t)
	t.Log(l.node.do(t, 5*time.Minute, "gpushare apply -f /opt/lab/guest/kubernetes.yaml --drained kubernetes 2>&1"))
	l.published(t, "no whole GPU", func(all map[string]device) bool {
		_, two := all["gpu-2"]
		_, three := all["gpu-3"]
		return !two && !three && clean(all, both...)
	})
}

// wholeOf is the GPU of a pod that has one: it opens that alone.
func (l *lab) wholeOf(t *testing.T, name string) string {
	t.Helper()
	log := l.node.do(t, 2*time.Minute, "until_true 60 shows "+name+"; last_log_of "+name)
	for _, g := range gpus[2:] {
		if strings.Contains(log, "open "+g+" through\n") {
			l.opensOnly(t, name, g)
			return g
		}
	}
	t.Errorf("pod %s opens none of the whole GPUs:\n%s", name, log)
	return ""
}
