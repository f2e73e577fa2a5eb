//go:build engines

package engines

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// exampleImage is how the manifests name images: they are of the site.
var exampleImage = regexp.MustCompile(`registry\.example/[^,} \n]+`)

// examples are those of the driver as they are, with the image of the tests.
func examples(t *testing.T) string {
	t.Helper()
	return exampleImage.ReplaceAllString(readFile(t, "../../kubelet/deploy/examples.yaml"), workImage)
}

// examplePods is a selector of them: other pods of the tests have no such name.
const examplePods = "metadata.namespace=default"

// exampleUIDs waits until the four pods of the examples run, and returns their UIDs.
func (l *lab) exampleUIDs(t *testing.T) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	pods, err := awaitAll(ctx, l.cluster, kinds["Pod"], examplePods, func(all map[string]*pod) bool {
		count := map[string]int{}
		for name, p := range all {
			if running(p) && p.Metadata.DeletionTimestamp == "" {
				kind, _, _ := strings.Cut(name, "-")
				count[kind]++
			}
		}
		return count["training"] == 1 && count["inference"] == 2 && count["notebook"] == 1
	})
	if err != nil {
		t.Log(l.kubectl(t, "describe", "pods"))
		t.Fatal(err)
	}
	var uids []string
	for _, p := range pods {
		if running(p) {
			uids = append(uids, p.Metadata.UID)
		}
	}
	return uids
}

// The three examples run as the page says, each pod with a lease of its claim. They are left for the drain of the node.
func (l *lab) examplesRun(t *testing.T) {
	t.Log(l.kubectlReads(t, examples(t), "apply", "-f", "-"))
	for _, uid := range l.exampleUIDs(t) {
		l.node.do(t, time.Minute, "until_true 30 one_lease_of "+uid)
	}
	t.Log(l.kubectl(t, "get", "pods", "-o", "wide"))
	t.Log(l.node.do(t, time.Minute, "gpushare status; gpushare lease list"))
}

// The node is drained, its instances get a layout, and it comes back: pods of a controller run again, and nothing was left in between. While
// pods run, and as long as the command does not say that there are none, the change is refused.
func (l *lab) nodeIsDrained(t *testing.T) {
	l.kubectlReads(t, examples(t), "apply", "-f", "-")
	l.exampleUIDs(t)
	refused := l.node.do(t, 5*time.Minute, "! gpushare apply -f /opt/lab/guest/layout.yaml 2>&1")
	t.Log(refused)
	if !strings.Contains(refused, "--drained kubernetes") {
		t.Errorf("the refusal does not say how a node is changed: %s", refused)
	}
	began := time.Now()
	t.Log(l.kubectl(t, "drain", nodeName, "--force", "--ignore-daemonsets", "--timeout=6m"))
	t.Logf("drained within %.0f s", time.Since(began).Seconds())
	l.nothingLeft(t)
	t.Log(l.node.do(t, 5*time.Minute, "gpushare apply -f /opt/lab/guest/layout.yaml --drained kubernetes"))
	l.offers(t, 7)
	l.kubectl(t, "uncordon", nodeName)
	l.exampleAgain(t)
	uid := l.working(t, "of-layout", "mig-1g", "4GiB")
	l.opensOnly(t, "of-layout", gpus[0])
	l.node.do(t, time.Minute, "one_lease_of "+uid)
	l.remove(t, "of-layout")
	l.kubectlReads(t, examples(t), "delete", "--ignore-not-found", "-f", "-")
	l.node.do(t, 3*time.Minute, "until_true 120 no_leases")
	t.Log(l.node.do(t, 5*time.Minute, "gpushare apply -f /opt/lab/guest/kubernetes.yaml --drained kubernetes"))
	l.offers(t, allPlacements)
	l.nothingLeft(t)
}

// exampleAgain waits until the pods of the Deployment run: the bare pods have ended, as a drain says.
func (l *lab) exampleAgain(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	pods, err := awaitAll(ctx, l.cluster, kinds["Pod"], examplePods, func(all map[string]*pod) bool {
		n := 0
		for _, p := range all {
			if running(p) {
				n++
			}
		}
		return n == 2
	})
	if err != nil {
		t.Log(l.kubectl(t, "describe", "pods"))
		t.Fatal(err)
	}
	for _, p := range pods {
		l.node.do(t, time.Minute, "until_true 30 one_lease_of "+p.Metadata.UID)
	}
}

// allPlacements is how many instances of the profiles of the grants GPU 0 may have, each counted once: two of 3g.40gb, seven of 1g.10gb.
const allPlacements = 9

// offers waits until the API has that many instances of GPU 0.
func (l *lab) offers(t *testing.T, instances int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	began := time.Now()
	if _, err := awaitAll(
		ctx, l.cluster, "/apis/resource.k8s.io/v1/resourceslices", "spec.nodeName="+nodeName,
		func(all map[string]*slice) bool {
			n := 0
			for _, s := range all {
				for _, d := range s.Spec.Devices {
					if strings.HasPrefix(byIndex(&d), "gpu-0-mig-") {
						n++
					}
				}
			}
			return n == instances
		},
	); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d instances are offered, after %.1f s", instances, time.Since(began).Seconds())
}

// daemonSet is the manifest of the driver as a pod. The pods of the lab have no network of their own, so this one has that of the node, and
// the address of the apiserver there.
func (l *lab) daemonSet(t *testing.T) string {
	t.Helper()
	text := exampleImage.ReplaceAllString(readFile(t, "../../kubelet/deploy/daemonset.yaml"), driverImage)
	for _, change := range [][2]string{
		{"      serviceAccountName:", "      hostNetwork: true\n      serviceAccountName:"},
		{"          env:\n", fmt.Sprintf(
			"          env:\n            - {name: KUBERNETES_SERVICE_HOST, value: 10.0.2.2}\n            - {name: KUBERNETES_SERVICE_PORT, value: %q}\n",
			fmt.Sprint(l.port),
		)},
	} {
		if strings.Count(text, change[0]) != 1 {
			t.Fatalf("the manifest has not one %q:\n%s", change[0], text)
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return text
}

// asDaemonSet replaces the unit of the driver by a pod of its DaemonSet, until do ends.
func (l *lab) asDaemonSet(t *testing.T, do func(driver *pod)) {
	t.Helper()
	manifest := l.daemonSet(t)
	l.node.do(t, time.Minute, "systemctl disable --now --quiet gpushare-kubelet.service")
	defer l.node.do(t, time.Minute, "systemctl enable --now --quiet gpushare-kubelet.service")
	t.Log(l.kubectlReads(t, manifest, "apply", "-f", "-"))
	defer l.kubectlReads(t, manifest, "delete", "-f", "-")
	l.kubectl(t, "label", "--overwrite", "node", nodeName, "gpushare.dev/node=true")
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var driver *pod
	if _, err := awaitAll(ctx, l.cluster, "/api/v1/namespaces/gpushare/pods", "", func(all map[string]*pod) bool {
		for _, p := range all {
			if running(p) {
				driver = p
			}
		}
		return driver != nil
	}); err != nil {
		t.Log(l.kubectl(t, "describe", "pods", "-n", "gpushare"))
		t.Fatal(err)
	}
	do(driver)
}

// The driver runs as a pod of its DaemonSet instead of from its unit: what it offers is published, and claims are prepared.
func (l *lab) pluginRunsAsAPod(t *testing.T) {
	l.asDaemonSet(t, func(*pod) {
		uid := l.working(t, "by-daemonset", "mig-3g", "8GiB")
		l.opensOnly(t, "by-daemonset", gpus[0])
		l.node.do(t, time.Minute, "one_lease_of "+uid)
		l.remove(t, "by-daemonset")
		if rest := l.node.do(t, time.Minute, "leases; find /run/cdi -name 'gpushare.dev-claim_*'"); rest != "" {
			t.Errorf("the claim has left: %s", rest)
		}
		t.Log(l.kubectl(t, "rollout", "restart", "-n", "gpushare", "daemonset/gpushare-kubelet"))
		t.Log(l.kubectl(t, "rollout", "status", "-n", "gpushare", "daemonset/gpushare-kubelet", "--timeout=3m"))
		l.working(t, "after-update", "mig-3g", "8GiB")
		l.opensOnly(t, "after-update", gpus[0])
		l.remove(t, "after-update")
	})
	l.nothingLeft(t)
	l.offers(t, allPlacements)
}
