//go:build engines

package engines

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// plugin builds gpushare-kubelet into a directory of its own. It is the program of a release but for the instants at which it can kill
// itself.
func plugin(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "faultpoint", "-ldflags", "-s -w", "-o", dir,
		"./cmd/gpushare-kubelet")
	cmd.Dir = "../../kubelet"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build gpushare-kubelet: %v\n%s", err, out)
	}
	return dir
}

// gpus are the nodes of the virtual GPUs, which the pods try to open.
var gpus = []string{
	"/var/lib/gpusim/dev/nvidia0",
	"/var/lib/gpusim/dev/nvidia1",
	"/var/lib/gpusim/dev/nvidia2",
	"/var/lib/gpusim/dev/nvidia3",
}

// claimant creates a pod with a claim of a template. It tries to open each GPU, and becomes the command, if there is one: a program of
// the virtual node, of which it has the libraries.
func (l *lab) claimant(t *testing.T, name, template string, command ...string) {
	t.Helper()
	l.claimantThat(t, name, "Never", template, command...)
}

// claimantThat is claimant with a policy of restarts.
func (l *lab) claimantThat(t *testing.T, name, restart, template string, command ...string) {
	t.Helper()
	l.claimantOf(t, name, restart, "resourceClaimTemplateName: "+template, "", command...)
}

// claimantOf is claimantThat with what its claim is in the spec of the pod, and more YAML of that spec.
func (l *lab) claimantOf(t *testing.T, name, restart, claim, more string, command ...string) {
	t.Helper()
	arguments := slices.Clone(gpus)
	if len(command) > 0 {
		arguments = append(append(arguments, "--"), command...)
	}
	l.podThat(t, name, restart, fmt.Sprintf(`resourceClaims: [{name: gpu, %s}]
volumes:
- {name: usr, hostPath: {path: /usr}}
- {name: gpusim, hostPath: {path: /var/lib/gpusim}}
%s`, claim, more), fmt.Sprintf(`args: ["%s"]
env: [{name: GPUSIM_ROOT, value: /var/lib/gpusim}]
resources: {claims: [{name: gpu}]}
volumeMounts:
- {name: usr, mountPath: /host/usr, readOnly: true}
- {name: gpusim, mountPath: /var/lib/gpusim}
`, strings.Join(arguments, `", "`)))
}

// burn is the program that uses a virtual GPU, with the libraries of the node: CDI mounts files of the driver below /usr of the container.
var burn = []string{
	"/host/usr/lib64/ld-linux-x86-64.so.2", "--library-path", "/host/usr/lib/x86_64-linux-gnu", "/host/usr/local/lib/gpusim/gpusim-burn",
	"--kernel", "50ms", "--queue", "2", "--seconds", "3000", "--memory",
}

// working is claimant with a program that uses some GPU memory, and waits until it runs.
func (l *lab) working(t *testing.T, name, template, memory string) (uid string) {
	t.Helper()
	return l.workingThat(t, name, "Never", template, memory)
}

func (l *lab) workingThat(t *testing.T, name, restart, template, memory string) (uid string) {
	t.Helper()
	l.claimantThat(t, name, restart, template, append(slices.Clone(burn), memory)...)
	return l.works(t, name)
}

// works waits until a pod runs and its program uses a GPU.
func (l *lab) works(t *testing.T, name string) (uid string) {
	t.Helper()
	p := l.wants(t, name, started)
	if !running(p) {
		t.Fatalf("pod %s does not run:\n%s", name, l.kubectl(t, "describe", "pod", name))
	}
	uid = p.Metadata.UID
	l.node.do(t, 3*time.Minute, "until_true 120 grep -qs ' ready' /var/log/pods/default_"+name+"_*/main/0.log")
	return uid
}

// started reports whether the containers run or have ended.
func started(p *pod) bool { return running(p) || p.has("Failed") || p.has("Succeeded") }

// unschedulable reports whether the scheduler found no place.
func (p *pod) unschedulable() bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c condition) bool {
		return c.Type == "PodScheduled" && c.Status == "False"
	})
}

type device struct {
	Name       string
	Attributes map[string]struct{ Int *int }
	Taints     []struct{ Key, Value, Effect string }
}

type slice struct {
	Spec struct {
		Devices        []device
		SharedCounters []struct{ Name string }
	}
}

// The plug-in starts on the node: within seconds the API has the devices of the spec, and no other.
func (l *lab) nodeIsPublished(t *testing.T) {
	l.node.do(t, 2*time.Minute, "start_plugin")
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	began := time.Now()
	_, err := awaitAll(
		ctx,
		l.cluster,
		"/apis/resource.k8s.io/v1/resourceslices",
		"spec.nodeName="+nodeName,
		func(all map[string]*slice) bool {
			devices, sets := []string{}, 0
			for _, s := range all {
				sets += len(s.Spec.SharedCounters)
				for _, d := range s.Spec.Devices {
					devices = append(devices, byIndex(&d))
				}
			}
			has := func(name string) bool { return slices.Contains(devices, name) }
			return sets > 0 && has("gpu-0-mig-3g-40gb-0") && has("gpu-0-mig-3g-40gb-4") && has("gpu-0-mig-1g-10gb-6") &&
				has("gpu-1-parts") &&
				!slices.ContainsFunc(devices, func(d string) bool { return strings.HasPrefix(d, "gpu-2") || strings.HasPrefix(d, "gpu-3") })
		},
	)
	if err != nil {
		out, _ := l.node.try(time.Minute, "journalctl -u gpushare-kubelet --no-pager -o cat | tail -n 30; gpushare status; gpushare doctor")
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("published %.1f s after the start of the plug-in", time.Since(began).Seconds())
	t.Log(
		l.kubectl(
			t,
			"get",
			"resourceslices",
			"-o",
			"custom-columns=NODE:.spec.nodeName,DRIVER:.spec.driver,POOL:.spec.pool.name,DEVICES:.spec.devices[*].name",
		),
	)
	for _, file := range []string{"../../kubelet/deploy/classes.yaml", "claims.yaml"} {
		if err := l.create(ctx, readFile(t, file)); err != nil {
			t.Fatal(err)
		}
	}
}

// Two pods have an instance each, the third waits until one is deleted. Each opens the GPU of its instance and no other, and uses it.
func (l *lab) instances(t *testing.T) {
	one, two := l.working(t, "mig-one", "mig-3g", "8GiB"), l.working(t, "mig-two", "mig-3g", "8GiB")
	l.claimant(t, "mig-three", "mig-3g")
	l.wants(t, "mig-three", (*pod).unschedulable)
	t.Log(
		l.node.do(
			t,
			time.Minute,
			"leases; placements; gpushare lease list",
		),
	)
	for _, name := range []string{"mig-one", "mig-two"} {
		l.opensOnly(t, name, gpus[0])
	}
	l.remove(t, "mig-one")
	l.node.do(t, 2*time.Minute, "until_true 60 no_lease_of "+one)
	l.wants(t, "mig-three", running)
	if n := l.node.do(t, time.Minute, "leases_of "+two); n != "1" {
		t.Errorf("the other pod has %s leases, want 1", n)
	}
	l.remove(t, "mig-two")
	l.remove(t, "mig-three")
	l.nothingLeft(t)
}

// opensOnly checks how the opens of a pod ended, at the last start of its container.
func (l *lab) opensOnly(t *testing.T, name string, its ...string) {
	t.Helper()
	log := l.node.do(t, 2*time.Minute, "until_true 60 shows "+name+"; last_log_of "+name)
	for _, g := range gpus {
		want := "denied"
		if slices.Contains(its, g) {
			want = "through"
		}
		if !strings.Contains(log, "open "+g+" "+want+"\n") {
			t.Errorf("pod %s: %s is not %s:\n%s", name, g, want, log)
		}
	}
}

// Two pods have parts of one GPU, a third finds no place. The one that uses more memory than it claimed is ended, the other one goes on.
func (l *lab) parts(t *testing.T) {
	kept := l.working(t, "part-kept", "part-30g", "20GiB")
	before := l.node.do(t, time.Minute, "processes_of "+kept)
	l.claimant(t, "part-over", "part-30g", append(slices.Clone(burn), "40GiB")...)
	l.wants(t, "part-over", started)
	l.claimant(t, "part-third", "part-30g")
	l.wants(t, "part-third", (*pod).unschedulable)
	l.opensOnly(t, "part-kept", gpus[1])
	ended := l.wants(t, "part-over", func(p *pod) bool { return p.has("Failed") })
	t.Logf("the pod with too much: %s %s %s", ended.Status.Phase, ended.Status.Reason, ended.Status.Message)
	t.Log(
		l.node.do(
			t,
			time.Minute,
			"leases; log_of part-over | tail -n 3; gpushare lease list; gpushare lease show $(field '[.leases[] | select(.state == \"running\") | .id][0]')",
		),
	)
	t.Log(l.kubectl(t, "describe", "pod", "part-over"))
	l.goesOn(t, kept, before, "the end of the other pod")
	l.wants(t, "part-third", running)
	for _, name := range []string{"part-over", "part-third", "part-kept"} {
		l.remove(t, name)
	}
	l.nothingLeft(t)
}

// nothingLeft waits until claims have left nothing on the node.
func (l *lab) nothingLeft(t *testing.T) {
	t.Helper()
	if out, err := l.node.try(3*time.Minute, "until_true 120 nothing_left"); err != nil {
		rest, _ := l.node.try(time.Minute, "left; journalctl -u gpushare-kubelet -u gpushared --no-pager -o cat | tail -n 30")
		t.Errorf("claims have left: %v: %s\n%s", err, out, rest)
	}
}
