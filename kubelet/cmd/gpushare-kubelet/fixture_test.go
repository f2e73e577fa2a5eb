package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/publish"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/leftover"
)

const top = "../../.."

func TestMain(m *testing.M) { os.Exit(leftover.Main(m)) }

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// program is the driver with the places where a test may kill it, built once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gpushare-kubelet-")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "gpushare-kubelet")
	cmd := exec.Command("go", "build", "-tags", "faultpoint", "-o", file, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the driver: %w\n%s", err, out)
	}
	return file, nil
})

// newNode starts gpushared on a virtual node with a spec.
func newNode(t *testing.T, file, spec string) *harness.Node {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join(top, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "gpushared")); err != nil {
		t.Skipf("gpushared is missing: run 'make build' first")
	}
	n := &harness.Node{Bin: bin, File: filepath.Join(t.TempDir(), "node.yaml")}
	if err := os.WriteFile(n.File, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, spec)
	return n
}

func apply(t *testing.T, n *harness.Node, spec string) {
	t.Helper()
	if r := n.CLIIn(soon(t), spec, "apply", "-f", "-"); r.Code != 0 {
		t.Fatalf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// driver is the program on a node, with the directory of a kubelet.
type driver struct {
	node    *harness.Node
	server  *apiserver
	config  string
	root    string // of the kubelet
	cgroups string // where pods are, as if it was the mount of cgroup v2
	job     *harness.Job
}

func newDriver(t *testing.T, n *harness.Node) *driver {
	t.Helper()
	a := newAPIServer(t)
	root, err := os.MkdirTemp("", "kubelet-") // The path of a socket is short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	d := &driver{node: n, server: a, config: a.kubeconfig(t), root: root, cgroups: t.TempDir()}
	t.Cleanup(func() {
		if d.job != nil {
			d.job.Kill()
			if t.Failed() {
				t.Logf("the driver says:\n%s", d.job.Output())
			}
		}
	})
	return d
}

func (d *driver) cdi() string { return filepath.Join(d.node.Dir, "cdi") }

// start runs the driver; fault is GPUSHARE_FAULT.
func (d *driver) start(t *testing.T, fault string) {
	t.Helper()
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(
		file, "--socket", d.node.Socket(), "--kubeconfig", d.config, "--node", testNode, "--kubelet-dir", d.root, "--cdi-dir", d.cdi(),
		"--cgroup-mount", d.cgroups, "--pod-uid", "",
	)
	cmd.Env = append(os.Environ(), "GPUSHARE_FAULT="+fault)
	if d.job, err = d.node.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
}

// kubelet is the kubelet of the tests: it registers the driver and calls it.
type kubelet struct {
	conn *grpc.ClientConn
	drapb.DRAPluginClient
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// register waits for the driver's socket and registers it, as the kubelet does.
func (d *driver) register(t *testing.T) *kubelet {
	t.Helper()
	ctx := soon(t)
	var info *registerapi.PluginInfo
	err := harness.Await(ctx, 20*time.Millisecond, "the driver is not registered", func() (bool, error) {
		sockets, err := filepath.Glob(filepath.Join(d.root, "plugins_registry", "*.sock"))
		if err != nil || len(sockets) == 0 {
			return false, err
		}
		conn, err := dial(sockets[0])
		if err != nil {
			return false, err
		}
		defer conn.Close()
		c := registerapi.NewRegistrationClient(conn)
		if info, err = c.GetInfo(ctx, &registerapi.InfoRequest{}); err != nil {
			return false, nil //nolint:nilerr // It starts.
		}
		_, err = c.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if info.Type != registerapi.DRAPlugin || info.Name != publish.Driver {
		t.Fatalf("it registers as %+v", info)
	}
	conn, err := dial(info.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &kubelet{conn, drapb.NewDRAPluginClient(conn)}
}

func reference(c *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}
}

// prepare is NodePrepareResources of one claim. err: the driver did not answer.
func (k *kubelet) prepare(ctx context.Context, c *resourceapi.ResourceClaim) (*drapb.NodePrepareResourceResponse, error) {
	r, err := k.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{reference(c)}})
	if err != nil {
		return nil, err
	}
	one := r.Claims[string(c.UID)]
	if one == nil {
		return nil, errors.New("the answer has no such claim")
	}
	return one, nil
}

func (k *kubelet) unprepare(ctx context.Context, c *resourceapi.ResourceClaim) (string, error) {
	r, err := k.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{reference(c)}})
	if err != nil {
		return "", err
	}
	one := r.Claims[string(c.UID)]
	if one == nil {
		return "", errors.New("the answer has no such claim")
	}
	return one.Error, nil
}

// claim is an allocated claim of one pod, whose cgroup is there.
func (d *driver) claim(t *testing.T, name string, devices ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	t.Helper()
	pod := types.UID("pod-" + name)
	if err := os.MkdirAll(
		filepath.Join(d.cgroups, "kubepods.slice", "kubepods-pod"+strings.ReplaceAll(string(pod), "-", "_")+".slice"),
		0o755,
	); err != nil {
		t.Fatal(err)
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)}}
	for i := range devices {
		devices[i].Driver, devices[i].Pool, devices[i].Request = publish.Driver, testNode, fmt.Sprintf("gpu%d", i)
	}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: devices}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod}}
	d.server.add(c)
	return c
}

func status(t *testing.T, n *harness.Node) *api.Status {
	t.Helper()
	c := n.Client()
	defer c.Close()
	s, err := c.Status(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// leases are those of claims.
func leases(t *testing.T, n *harness.Node) []api.Lease {
	t.Helper()
	var out []api.Lease
	for _, l := range status(t, n).Leases {
		if l.Engine != nil && strings.HasPrefix(l.Engine.Key, publish.KeyPrefix) {
			out = append(out, l)
		}
	}
	return out
}

// files are what is in the directory of CDI files, besides those of gpushared, which it may be writing.
func (d *driver) files(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(d.cdi())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(strings.TrimPrefix(e.Name(), "."), "gpushare-") {
			out = append(out, e.Name())
		}
	}
	return out
}

// killed waits for the end of the driver by SIGKILL.
func (d *driver) killed(t *testing.T) {
	t.Helper()
	select {
	case <-d.job.Done():
	case <-soon(t).Done():
		t.Fatal("the driver was not killed")
	}
	if !bytes.Contains([]byte(d.job.Output()), []byte("fault point")) {
		t.Fatalf("it ended by itself: %s", d.job.Output())
	}
}
