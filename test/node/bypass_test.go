package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// bypassNode has one GPU, and names MPS clients in the lists of processes that the parameter says.
const bypassNode = `driver: "580"
mps_clients: %s
context_memory: 64MiB
gpus:
  - {model: A100-SXM4-40GB, count: 1}
`

const bypassSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mps, mps: {bypass: stop}}
tenants:
  - name: red
    grants:
      - {name: join, mps: {share: 30%}}
`

// shell runs a script in a lease of red/join, and returns when it has printed its first line.
func shell(t *testing.T, n *harness.Node, script string) (job *harness.Job, id string) {
	t.Helper()
	job, err := n.Run("-q", "-t", "red", "--grant", "join", "--", "sh", "-c", `echo "lease=$GPUSHARE_LEASE."; `+script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "."); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(job.Output(), "lease=")
	id, _, _ = strings.Cut(rest, ".")
	// The script has processes that outlive it.
	t.Cleanup(func() { n.CLI(context.Background(), "lease", "stop", id) })
	return job, id
}

// A process that uses a GPU without its MPS is found and stopped, whatever the driver lists of MPS: it has its environment removed,
// or joined a server of its own. Clients and the server of the GPU are not.
func TestBypassIsStopped(t *testing.T) {
	enumeration.Long(t)
	bypassIsStopped(t, bypassSpec, "GPU 0")
}

// The same in a MIG instance that is shared. A lease of another instance of the GPU is not concerned.
func TestBypassInAnInstanceIsStopped(t *testing.T) {
	enumeration.Long(t)
	bypassIsStopped(t, bypassInstance, "GPU 0, 3g.20gb at ")
}

func bypassIsStopped(t *testing.T, spec, where string) {
	t.Helper()
	for _, lists := range []string{"own", "both", "server"} {
		for _, way := range []string{"without its environment", "with a server of its own"} {
			t.Run(lists+", "+way, func(t *testing.T) {
				t.Parallel()
				node := fmt.Sprintf(bypassNode, lists)
				if spec == bypassInstance {
					node = replaced(t, node, "count: 1", "count: 1, mig: true")
				}
				n := newNode(t, node)
				n.Settings = map[string]string{"converge_interval": "1h"} // The search does not need a full observation.
				if err := n.Start(soon(t)); err != nil {
					t.Fatal(err)
				}
				apply(t, n, spec)
				burn := strings.Join(n.Burn("--memory", "64MiB", "--hold"), " ")
				var alone *harness.Job
				if spec == bypassInstance {
					alone, _ = begin(t, n, "red", "alone", n.Burn("--memory", "64MiB", "--hold")...)
				}
				client, _ := shell(t, n, "exec "+burn)
				if err := client.AwaitLine(soon(t), "ready"); err != nil {
					t.Fatal(err)
				}
				events := follow(t, n)
				script := "env -u CUDA_MPS_PIPE_DIRECTORY " + burn
				if way == "with a server of its own" {
					dir := filepath.Join(n.Dir, "own")
					control := filepath.Join(n.Root(), "usr/bin/nvidia-cuda-mps-control")
					script = fmt.Sprintf(
						"mkdir %[1]s; CUDA_MPS_PIPE_DIRECTORY=%[1]s CUDA_MPS_LOG_DIRECTORY=%[1]s %[2]s -f >/dev/null 2>&1 & while ! test -S %[1]s/control; do sleep 0.1; done; CUDA_MPS_PIPE_DIRECTORY=%[1]s %[3]s",
						dir,
						control,
						burn,
					)
				}
				job, id := shell(t, n, script+`; echo "ended=$?."; exec `+burn)
				if e := events.await(t, "mps.bypass", id); !strings.Contains(e.Message, "uses "+where) {
					t.Errorf("the event says %q, want %q", e.Message, where)
				}
				events.await(t, "mps.bypass.stopped", id)
				if err := job.AwaitLine(soon(t), "ended="); err != nil {
					t.Fatalf("%v\n%s\n%s", err, job.Output(), daemonLog(n))
				}
				if err := harness.Await(soon(t), 100*time.Millisecond, "a condition is left", func() (bool, error) {
					return !hasCondition(status(t, n), "mps-bypass", ""), nil
				}); err != nil {
					t.Error(err)
				}
				s := status(t, n)
				if st, err := procfs.Read(client.PID()); err != nil || st.Dead() {
					t.Errorf("a client was stopped: %v", err)
				}
				m := s.GPUs[0].MPS
				if alone != nil {
					m = instanceOf(t, s, "3g.20gb").MPS
					if st, err := procfs.Read(alone.PID()); err != nil || st.Dead() {
						t.Errorf("a process of another instance was stopped: %v", err)
					}
				}
				if m == nil || m.State != "running" || m.Bypass != api.BypassStop {
					t.Errorf("MPS is %+v", m)
				}
				if harness.Lease(s, "red", "join") == nil {
					t.Error("the lease has ended")
				}
			})
		}
	}
}

// bypassInstance is bypassSpec with a MIG instance that is shared.
const bypassInstance = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 2g.10gb], mps: [3g.20gb]}, mps: {bypass: stop}}
tenants:
  - name: red
    grants:
      - {name: join, mig: 3g.20gb, mps: {share: 30%}}
      - {name: alone, mig: 2g.10gb}
`

// With bypass: report a process is reported and goes on.
func TestBypassIsReported(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, fmt.Sprintf(bypassNode, "own"))
	apply(t, n, replaced(t, bypassSpec, "bypass: stop", "bypass: report"))
	job, id := shell(t, n, "exec env -u CUDA_MPS_PIPE_DIRECTORY "+strings.Join(n.Burn("--memory", "64MiB", "--hold"), " "))
	want := fmt.Sprintf("(gpusim-burn) of lease %s of red uses GPU 0 and is no client of its MPS", id)
	if err := harness.Await(soon(t), 100*time.Millisecond, "the process is not reported", func() (bool, error) {
		return hasCondition(status(t, n), "mps-bypass", want), nil
	}); err != nil {
		t.Errorf("%v: %+v", err, status(t, n).Node.Conditions)
	}
	select {
	case <-job.Done():
		t.Errorf("it has ended with %d\n%s", job.Code(), daemonLog(n))
	default:
	}
}

// A lease whose GPU has no MPS client left waits, or is refused with the number.
func TestClientsOfMPSAreCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t, fmt.Sprintf(bypassNode, "own"))
	n.Settings = map[string]string{"converge_interval": "2s"}
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, bypassSpec)
	burn := strings.Join(n.Burn("--hold"), " ")
	_, full := shell(t, n, "for i in $(seq 48); do "+burn+" & done; wait")
	var r harness.Result
	const want = "GPU 0's MPS has 48 of 48 clients"
	if err := harness.Await(soon(t), 500*time.Millisecond, "a lease is not refused", func() (bool, error) {
		r = n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "join", "--", "true")
		return strings.Contains(r.Err, want), nil
	}); err != nil {
		t.Fatalf("%v: exit %d\n%s\n%+v", err, r.Code, r.Err, status(t, n).GPUs[0].MPS)
	}
	if m := status(t, n).GPUs[0].MPS; m.Clients != 48 || m.MaxClients != 48 {
		t.Errorf("status has %+v", m)
	}
	if list := n.CLI(soon(t), "mps", "list"); !strings.Contains(list.Out, "48 of 48") {
		t.Errorf("mps list printed\n%s", list.Out)
	}
	waiting, err := n.Run("-q", "-t", "red", "--grant", "join", "--wait", "--", "true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(waiting.Kill)
	if err := harness.Await(soon(t), 100*time.Millisecond, "no request waits for a client", func() (bool, error) {
		for _, l := range status(t, n).Leases {
			if l.State == "queued" && strings.Contains(l.Waiting, want) {
				return true, nil
			}
		}
		return false, nil
	}); err != nil {
		t.Error(err)
	}
	if r := n.CLI(soon(t), "lease", "stop", full); r.Code != api.ExitOK {
		t.Fatalf("lease stop: %s", r.Err)
	}
	select {
	case <-waiting.Done():
		if waiting.Code() != api.ExitOK {
			t.Errorf("it ended with %d: %s", waiting.Code(), waiting.Output())
		}
	case <-soon(t).Done():
		t.Errorf("it still waits: %+v", status(t, n).Leases)
	}
}
