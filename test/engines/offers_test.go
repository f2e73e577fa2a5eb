//go:build engines

package engines

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"
)

// slicesPath is where the API has what nodes offer.
const slicesPath = "/apis/resource.k8s.io/v1/resourceslices"

// byIndex is the name of a device with the index of its GPU, which it has as an attribute, in place of a part of the UUID.
func byIndex(d *device) string {
	index := d.Attributes["index"].Int
	if index == nil {
		return d.Name
	}
	parts := strings.SplitN(d.Name, "-", 3)
	return strings.Join(append([]string{parts[0], strconv.Itoa(*index)}, parts[2:]...), "-")
}

// published waits until the devices of the node are as accept wants them, by index, and logs how long that took.
func (l *lab) published(t *testing.T, what string, accept func(map[string]device) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	began := time.Now()
	last := map[string]device{}
	if _, err := awaitAll(ctx, l.cluster, slicesPath, "spec.nodeName="+nodeName, func(all map[string]*slice) bool {
		last = map[string]device{}
		for _, s := range all {
			for _, d := range s.Spec.Devices {
				last[byIndex(&d)] = d
			}
		}
		return accept(last)
	}); err != nil {
		out, _ := l.node.try(
			time.Minute,
			"gpushare status; conditions; journalctl -u gpushare-kubelet -u gpushared --no-pager -o cat | tail -n 30",
		)
		t.Fatalf("%s: %v: %v\n%s", what, err, last, out)
	}
	t.Logf("%s: in the API after %.1f s", what, time.Since(began).Seconds())
}

// tainted reports whether each of the devices has a taint of the driver with that effect, and none with the other one.
func tainted(all map[string]device, effect string, names ...string) bool {
	for _, name := range names {
		has, other := false, false
		for _, x := range all[name].Taints {
			if strings.HasPrefix(x.Key, "gpushare.dev/") {
				has, other = has || x.Effect == effect, other || x.Effect == noExecute && effect != noExecute
			}
		}
		if !has || other {
			return false
		}
	}
	return true
}

// clean reports whether each of the devices is offered without a taint.
func clean(all map[string]device, names ...string) bool {
	for _, name := range names {
		if d, ok := all[name]; !ok || len(d.Taints) > 0 {
			return false
		}
	}
	return true
}

// Effects of taints: what runs goes on, or is moved away.
const (
	noSchedule = "NoSchedule"
	noExecute  = "NoExecute"
)
