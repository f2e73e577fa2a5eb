package cli_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/test/programs"
)

// slurmNode is a node with one GPU in exclusive mode.
func slurmNode() api.Status {
	return api.Status{
		SchemaVersion: 1,
		Node:          api.NodeStatus{Host: "node1.example.org"},
		GPUs: []api.GPUStatus{
			{Index: 0, UUID: gpu0, Model: "NVIDIA A30", Mode: api.ModeExclusive, State: "ok", DeviceNode: "/dev/nvidia0"},
		},
	}
}

// ofSlurm are stand-ins of Slurm's programs, which print what the real ones print.
func ofSlurm(t *testing.T, texts map[string]string) (path string) {
	t.Helper()
	path = t.TempDir()
	for name, text := range texts {
		if err := programs.Write(filepath.Join(path, name), "#!/bin/sh\ncat <<'E'\n"+text+"\nE\n"); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func runSlurm(t *testing.T, path string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	socket := fakeDaemon(t, routes{"GET /v1/status": slurmNode()})
	code := cli.Run(
		t.Context(), append([]string{"slurm"}, args...), []string{"GPUSHARE_SOCKET=" + socket, "PATH=" + path},
		cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs},
	)
	return result{code: code, out: out.String(), err: errs.String()}
}

func TestSlurmGres(t *testing.T) {
	t.Parallel()
	r := runSlurm(t, "", "gres")
	if r.code != 0 || !strings.Contains(r.out, "\nNodeName=node1 Name=gpu Type=a30 File=/dev/nvidia0\n") ||
		!strings.Contains(r.out, "Gres=gpu:a30:1\n") {
		t.Errorf("gres exits with %d: %s%s", r.code, r.out, r.err)
	}
	r = runSlurm(t, "", "gres", "--json", "--node", "gpu01")
	var g api.SlurmGres
	if err := json.Unmarshal(
		[]byte(r.out),
		&g,
	); err != nil || r.code != 0 || g.Gres != "gpu:a30:1" || g.Node != "gpu01" ||
		len(g.GresConf) != 2 ||
		g.Notes == nil {
		t.Errorf("gres --json exits with %d, %v: %s%s", r.code, err, r.out, r.err)
	}
	r = runSlurm(t, "", "gres", "--gpu", "9")
	if r.code != api.ExitUsage || r.out != "" || !strings.Contains(r.err, "there is no GPU \"9\"") {
		t.Errorf("a GPU that is not there: %d, %s%s", r.code, r.out, r.err)
	}
	if r := runSlurm(t, "", "chek"); r.code != api.ExitUsage || !strings.Contains(r.err, "check") {
		t.Errorf("a command that is not there: %d, %s%s", r.code, r.out, r.err)
	}
	if r := runSlurm(t, "", "gres", "--node", "gpu[01-02]"); r.code != api.ExitUsage || !strings.Contains(r.err, "is no name of a node") {
		t.Errorf("a list of nodes: %d, %s%s", r.code, r.out, r.err)
	}
}

func TestSlurmCheck(t *testing.T) {
	t.Parallel()
	const gpu, other = "slurmd: Gres Name=gpu Type=a30 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE",
		"slurmd: Gres Name=gpu Type=a30 Count=1 Index=1 ID=7696487 File=/dev/nvidia1 Links=(null) Flags=HAS_FILE"
	const idle = "NodeName=node1 Arch=x86_64 Version=24.11.5 State=IDLE ThreadsPerCore=1"
	for _, c := range []struct {
		name     string
		programs map[string]string
		code     int
		says     []string
	}{
		{"as they are", map[string]string{"slurmd": gpu, "scontrol": idle}, 0, []string{"Slurm 24.11.5 knows the GPUs of node1 as they are"}},
		{
			"another GPU",
			map[string]string{"slurmd": other, "scontrol": idle},
			api.ExitDegraded,
			[]string{"slurmd does not know GPU 0", "open to every job", "slurmd knows gpu:a30 of /dev/nvidia1", "2 differences on node1"},
		},
		{
			"refused by slurmctld",
			map[string]string{"slurmd": gpu, "scontrol": "NodeName=node1 State=UNKNOWN+DRAIN+INVALID_REG Reason=gres/gpu count [root@2026-11-26T21:45:07]"},
			api.ExitDegraded,
			[]string{"(INVAL): gres/gpu count\n", "state=resume"},
		},
		{
			"no such node",
			map[string]string{"slurmd": gpu, "scontrol": "Node node1 not found"},
			api.ExitDegraded,
			[]string{"unknown: the state of the node: slurmctld has no node node1"},
		},
		{"no GPU", map[string]string{"slurmd": "slurmd: nothing", "scontrol": idle}, api.ExitDegraded, []string{"unknown: what slurmd knows"}},
		{"without slurmd", map[string]string{"scontrol": idle}, api.ExitDegraded, []string{"cannot run slurmd: it is not installed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := runSlurm(t, ofSlurm(t, c.programs), "check", "--dir", t.TempDir())
			if r.code != c.code {
				t.Errorf("check exits with %d, want %d: %s%s", r.code, c.code, r.out, r.err)
			}
			for _, s := range c.says {
				if !strings.Contains(r.out, s) {
					t.Errorf("check does not say %q: %s%s", s, r.out, r.err)
				}
			}
			var j api.SlurmCheck
			r = runSlurm(t, ofSlurm(t, c.programs), "check", "--dir", t.TempDir(), "--json")
			if err := json.Unmarshal([]byte(r.out), &j); err != nil || r.code != c.code || j.Differences == nil || j.Unknown == nil {
				t.Errorf("check --json exits with %d, %v: %s%s", r.code, err, r.out, r.err)
			}
		})
	}
}
