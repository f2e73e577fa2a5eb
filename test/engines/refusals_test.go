//go:build engines

package engines

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// opening is a pod that tries to open each GPU, with the claims of these templates. Resources is YAML of the container's resources, more
// than its claims.
func (l *lab) opening(t *testing.T, name, resources string, templates ...string) {
	t.Helper()
	var claims, used []string
	for i, template := range templates {
		claims = append(claims, fmt.Sprintf("{name: gpu%d, resourceClaimTemplateName: %s}", i, template))
		used = append(used, fmt.Sprintf("{name: gpu%d}", i))
	}
	l.pod(t, name, fmt.Sprintf(`resourceClaims: [%s]
volumes: [{name: gpusim, hostPath: {path: /var/lib/gpusim}}]
`, strings.Join(claims, ", ")), fmt.Sprintf(`args: ["%s"]
resources: {claims: [%s]%s}
volumeMounts: [{name: gpusim, mountPath: /var/lib/gpusim}]
`, strings.Join(gpus, `", "`), strings.Join(used, ", "), resources))
}

// shown waits until a pod that runs has tried to open the GPUs.
func (l *lab) shown(t *testing.T, name string) (uid string) {
	t.Helper()
	uid = l.wants(t, name, running).Metadata.UID
	l.node.do(t, time.Minute, "until_true 30 grep -qs ' shown$' /var/log/pods/default_"+name+"_*/main/0.log")
	return uid
}

// A pod without a claim opens no GPU, although it sees their nodes. A pod of the class Guaranteed is in a lease as the others, which are
// of the class BestEffort.
func (l *lab) classesOfPods(t *testing.T) {
	l.opening(t, "class-none", "")
	l.shown(t, "class-none")
	l.opensOnly(t, "class-none", "")
	for name, resources := range map[string]string{
		"class-guaranteed": ", requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 100m, memory: 64Mi}",
		"class-burstable":  ", requests: {memory: 32Mi}",
	} {
		l.opening(t, name, resources, "mig-1g")
		uid := l.shown(t, name)
		l.node.do(t, time.Minute, "until_true 30 one_lease_of "+uid)
		l.opensOnly(t, name, gpus[0])
		l.remove(t, name)
	}
	l.remove(t, "class-none")
	l.nothingLeft(t)
}

// A pod with two claims does not start: the reason is an event of it, in plain words. With its deletion the claim that was prepared goes.
func (l *lab) refusalIsAnEvent(t *testing.T) {
	l.opening(t, "refused", "", "mig-1g", "part-10g")
	const reason = "the processes of a pod are in one lease: put the devices into one claim"
	type event struct{ Message string }
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := awaitAll(ctx, l.cluster, "/api/v1/namespaces/default/events", "involvedObject.name=refused",
		func(all map[string]*event) bool {
			for _, e := range all {
				if strings.Contains(e.Message, reason) {
					return true
				}
			}
			return false
		}); err != nil {
		t.Fatal(err)
	}
	said := l.kubectl(t, "describe", "pod", "refused")
	t.Log(said[max(0, strings.Index(said, "Events:")):])
	l.remove(t, "refused")
	l.nothingLeft(t)
}
