package node

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

// 'gpushare ready' returns when the layouts that a boot removed are there again. READY of the daemon says less: each creation takes
// a while on this node. It does not wait for what does not come by itself.
func TestReadyAfterABoot(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, `driver: "550"
latency: {DeviceCreateGpuInstanceWithPlacement: 700ms, DeviceSetMigMode: 300ms}
gpus:
  - {model: H100-SXM5-80GB}
`)
	apply(
		t, n,
		"version: v1\nnode: {enforce: on}\ngpus:\n  - {select: {index: 0}, mode: mig, mig: {layout: [3g.40gb, 2g.20gb, 1g.10gb]}}\n",
	)
	was := truth(t, n)
	n.StopDaemon()
	if err := n.Ctl(soon(t), nil, "reboot"); err != nil {
		t.Fatal(err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if truth(t, n) == was {
		t.Error("the layout is there when the daemon answers: this test shows nothing")
	}
	if r := n.CLI(soon(t), "ready"); r.Code != 0 || strings.TrimSpace(r.Out) != "ready" {
		t.Errorf("ready exits with %d: %s%s\n%s", r.Code, r.Out, r.Err, daemonLog(n))
	}
	if is := truth(t, n); is != was {
		t.Errorf("it is ready with\n got %s\nwant %s", is, was)
	}

	if err := n.Ctl(soon(t), nil, "fault", "add", "DeviceCreateGpuInstanceWithPlacement", "fail", "--times", "-1"); err != nil {
		t.Fatal(err)
	}
	n.StopDaemon()
	if err := n.Ctl(soon(t), nil, "reboot"); err != nil {
		t.Fatal(err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if r := n.CLI(soon(t), "ready"); r.Code != api.ExitDegraded || !strings.Contains(r.Err, "the node is not ready: GPU 0 is held") {
		t.Errorf("with a GPU that fails it exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
}
