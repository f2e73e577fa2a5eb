//go:build engines

package engines

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/machine"
)

// soon is for one event of the engines, and what an emulated processor adds.
const soon = 8 * time.Minute

// lab is a control plane with one node.
type lab struct {
	*controlPlane
	node     *guest
	hardware machine.Hardware // of the node: it can be booted again
}

type node struct {
	Status struct {
		Conditions []condition
		NodeInfo   struct{ KubeletVersion, ContainerRuntimeVersion, KernelVersion, OSImage string }
	}
}

type condition struct{ Type, Status, Reason, Message string }

type pod struct {
	Metadata struct{ Name, UID, DeletionTimestamp string }
	Status   struct {
		Phase, Reason, Message string
		Conditions             []condition
		ContainerStatuses      []containerStatus
	}
}

type containerStatus struct {
	ContainerID              string
	AllocatedResourcesStatus []resourceStatus
}

// resourceStatus is how the devices of a claim are.
type resourceStatus struct {
	Name      string
	Resources []struct{ ResourceID, Health, Message string }
}

func (p *pod) has(phase string) bool { return p != nil && p.Status.Phase == phase }

func running(p *pod) bool { return p.has("Running") }

func newLab(t *testing.T) *lab {
	t.Helper()
	machine.Need(t)
	kubernetes, containerd := programsOf(t, "kubernetes"), programsOf(t, "containerd")
	image := machine.Base(t, machine.Debian13)
	driver := plugin(t)
	l := &lab{controlPlane: startControlPlane(t)}
	l.hardware = machine.Hardware{
		Image:   image,
		Disk:    machine.NewDisk(t, image),
		Memory:  2048,
		Network: true,
		Payload: machine.Payload(
			t,
			machine.Part{Target: "guest", Source: "../vm/guest"},
			machine.Part{Target: "guest", Source: "guest"},
			machine.Part{Target: "kubernetes", Source: only(t, kubernetes, "kubelet")},
			machine.Part{Target: "containerd", Source: containerd},
			machine.Part{Target: "images", Source: images(t, driver)},
			machine.Part{Target: "node", Source: only(t, l.dir, "ca.crt", "node.kubeconfig")},
			machine.Part{Target: "plugin", Source: driver},
			machine.Part{Target: "deploy", Source: "../../kubelet/deploy"},
			machine.Part{Target: "packages", Source: machine.Packages(t)},
			machine.Part{Target: "gpusim", Source: machine.Simulator(t)},
		),
	}
	l.node = boot(t, "kubernetes", l.hardware)
	return l
}

// pod creates a pod with one container of the work image. More is YAML of the pod's spec, container of its container.
func (l *lab) pod(t *testing.T, name, more, container string) {
	t.Helper()
	l.podThat(t, name, "Never", more, container)
}

// podThat is pod with a policy of restarts.
func (l *lab) podThat(t *testing.T, name, restart, more, container string) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  hostNetwork: true
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: %s
  terminationGracePeriodSeconds: 5
%s
  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
%s
`, name, restart, indent("  ", more), workImage, indent("    ", container))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.create(ctx, text); err != nil {
		t.Fatal(err)
	}
}

func indent(by, text string) string {
	if text == "" {
		return ""
	}
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

// wants waits until a pod is as accept wants it. What the node says about a failure is in the log of the test.
func (l *lab) wants(t *testing.T, name string, accept func(*pod) bool) *pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	p, err := await(ctx, l.cluster, kinds["Pod"], name, accept)
	if err != nil {
		t.Log(l.kubectl(t, "describe", "pod", name))
		t.Fatal(err)
	}
	return p
}

// delete requests the end of a pod.
func (l *lab) delete(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.request(ctx, "DELETE", kinds["Pod"]+"/"+name, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// remove deletes a pod and waits until it is not there any more.
func (l *lab) remove(t *testing.T, name string) {
	t.Helper()
	l.delete(t, name)
	l.wants(t, name, func(p *pod) bool { return p == nil })
}

func TestKubernetes(t *testing.T) {
	l := newLab(t)
	t.Run("ready", l.nodeIsReady)
	if t.Failed() {
		return
	}
	t.Run("pod", l.podRuns)
	t.Run("kills", l.podOutlivesKills)
	t.Run("gpushared", l.gpusharedStarts)
	t.Run("published", l.nodeIsPublished)
	if t.Failed() {
		return
	}
	t.Run("instances", l.instances)
	t.Run("parts", l.parts)
	t.Run("classes", l.classesOfPods)
	t.Run("refusal", l.refusalIsAnEvent)
	t.Run("cordoned", l.cordonedGPUs)
	t.Run("lost", l.lostGPUs)
	t.Run("several-pods", l.severalPodsOfOneClaim)
	t.Run("whole", l.wholeGPUs)
	t.Run("health", l.healthOfDevices)
	t.Run("mps", l.partsOfMPS)
	t.Run("claims-and-kills", l.claimsOutliveKills)
	t.Run("shares", l.sharesAreEnforced)
	t.Run("examples", l.examplesRun)
	t.Run("drain", l.nodeIsDrained)
	t.Run("daemonset", l.pluginRunsAsAPod)
	t.Run("admission", l.policyOfTheDaemonSet)
	t.Run("three-ways", l.threeWaysToOneGPU)
	t.Run("instants", l.pluginDiesAtEachInstant)
	t.Run("others-at-instants", l.othersDieAtEachInstant)
	t.Run("drawn-kills", l.partsDieAtDrawnTimes)
	t.Run("reboot", l.nodeReboots)
}

func (l *lab) nodeIsReady(t *testing.T) {
	l.node.do(t, 5*time.Minute, "start_network; start_containerd; start_kubelet")
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	began := time.Now()
	n, err := await(ctx, l.cluster, "/api/v1/nodes", nodeName, func(n *node) bool {
		if n == nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				return true
			}
		}
		return false
	})
	if err != nil {
		out, _ := l.node.try(
			time.Minute,
			"journalctl -u lab-kubelet -u lab-containerd --no-pager -o cat | grep -v '^I' | tail -n 40; systemctl status lab-kubelet | head -n 20",
		)
		t.Fatalf("%v\n%s", err, out)
	}
	i := n.Status.NodeInfo
	t.Logf("Ready %.0f s after the start of the kubelet: kubelet %s, %s, Linux %s, %s", time.Since(began).Seconds(),
		i.KubeletVersion, i.ContainerRuntimeVersion, i.KernelVersion, i.OSImage)
	t.Log(l.kubectl(t, "get", "nodes", "-o", "wide"))
}

// A pod without a claim runs, in a cgroup of its own, and ends.
func (l *lab) podRuns(t *testing.T) {
	uid, _ := l.plain(t, "plain")
	l.node.do(t, time.Minute, "until_true 30 grep -qs ' shown$' /var/log/pods/default_plain_*/main/0.log")
	log := l.node.do(t, time.Minute, "log_of plain")
	t.Log(log)
	if !strings.Contains(log, "cgroup 0::/") {
		t.Errorf("the container did not say where it runs: %s", log)
	}
	l.remove(t, "plain")
	l.node.do(t, time.Minute, "until_true 60 nothing_of "+uid)
}

// plain creates a pod without a claim, and waits until it runs. The processes are those of its container and its sandbox.
func (l *lab) plain(t *testing.T, name string) (uid, processes string) {
	t.Helper()
	l.pod(t, name, "", "")
	uid = l.wants(t, name, running).Metadata.UID
	if processes = l.node.do(t, time.Minute, "processes_of "+uid); processes == "" {
		t.Fatalf("no process of pod %s was found", name)
	}
	return uid, processes
}

// goesOn checks that a pod has the same processes as before.
func (l *lab) goesOn(t *testing.T, uid, processes, after string) {
	t.Helper()
	if now := l.node.do(t, time.Minute, "processes_of "+uid); now != processes {
		t.Errorf("after %s the pod has the processes %q, before %q", after, now, processes)
	}
}

// The kubelet and containerd are killed and started again: the container goes on as the same processes, and the pod can be ended.
func (l *lab) podOutlivesKills(t *testing.T) {
	uid, processes := l.plain(t, "steady")
	for _, unit := range []string{"lab-kubelet", "lab-containerd"} {
		l.node.do(t, 2*time.Minute, "killed "+unit+".service")
		l.goesOn(t, uid, processes, "a kill of "+unit)
	}
	l.remove(t, "steady")
	l.node.do(t, time.Minute, "until_true 60 nothing_of "+uid)
}

// gpushared starts on a node with a pod, and is killed: the pod goes on, another one runs, and the node stays in the state of its spec.
func (l *lab) gpusharedStarts(t *testing.T) {
	uid, processes := l.plain(t, "first")
	l.node.do(t, 15*time.Minute, "start_gpushare; gpushare apply -f /opt/lab/guest/kubernetes.yaml --allow-reset")
	t.Log(l.node.do(t, time.Minute, "gpushare version; gpushare status"))
	l.goesOn(t, uid, processes, "the start of gpushared")
	l.node.do(t, 2*time.Minute, "killed gpushared.service; until_true 60 answers")
	l.plain(t, "second")
	if said := l.node.do(t, time.Minute, "conditions"); said != "" {
		t.Errorf("gpushared reports next to pods: %s", said)
	}
	l.remove(t, "first")
	l.remove(t, "second")
}
