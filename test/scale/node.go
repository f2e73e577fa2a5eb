package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/test/harness"
)

// tenants share the GPUs of the node. Each has a grant of time and one of MPS.
const (
	tenants    = 8
	mostLeases = 256
)

const nodeFile = `driver: "580"
gpus:
  - {model: A100-SXM4-40GB, mig: true, count: 2}
  - {model: A100-SXM4-40GB, count: 6}
`

// node is a virtual node with leases that run.
type node struct {
	*harness.Node
	dir    string
	leases []*harness.Job
}

// spec is that of the node: MIG on two GPUs, MPS on two, time slices on the others. tasks is what a changed spec changes.
func spec(tasks int) string {
	var b strings.Builder
	b.WriteString(`version: v1
node: {enforce: on}
gpus:
  - {select: {index: [0, 1]}, mode: mig, mig: {layout: [1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]}}
  - {select: {index: [2, 3]}, mode: mps}
  - {select: {index: [4, 5, 6, 7]}, mode: timeslice}
tenants:
`)
	for i := range tenants {
		fmt.Fprintf(&b, `  - name: team%d
    tasks: %d
    grants:
      - {name: slice, timeslice: {share: 5%%, gpu_memory: 512MiB}, max_leases: 64}
      - {name: serve, mps: {share: 5%%, gpu_memory: 512MiB}}
      - {name: part, mig: 1g.5gb}
`, i, tasks)
	}
	return b.String()
}

func (s *site) startNode(ctx context.Context) (*node, error) {
	bin, err := filepath.Abs(s.bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return nil, err
	}
	n := &node{dir: dir, Node: &harness.Node{Bin: bin, File: filepath.Join(dir, "node.yaml")}}
	if err := n.prepare(ctx); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) prepare(ctx context.Context) error {
	if err := os.WriteFile(n.File, []byte(nodeFile), 0o600); err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	if r := n.CLIIn(ctx, spec(1000), "apply", "-f", "-", "--allow-reset"); r.Code != 0 {
		return fmt.Errorf("cannot apply the spec: exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	return nil
}

// run starts leases until there are as many: of each tenant one after the other, the first of each on an instance.
func (n *node) run(ctx context.Context, leases int) error {
	for i := len(n.leases); i < leases; i++ {
		grant := "slice"
		if i < tenants {
			grant = "part"
		}
		args := append(
			[]string{"-q", "-t", "team" + strconv.Itoa(i%tenants), "--grant", grant, "--"},
			n.Burn("--memory", "64MiB", "--hold")...)
		j, err := n.Run(args...)
		if err != nil {
			return err
		}
		n.leases = append(n.leases, j)
	}
	c := n.Client()
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	return harness.Await(ctx, readEvery, "a lease does not run", func() (bool, error) {
		for i, j := range n.leases {
			select {
			case <-j.Done():
				return false, fmt.Errorf("lease %d ended: %s", i+1, j.Output())
			default:
			}
		}
		st, err := c.Status(ctx)
		if err != nil {
			return false, err
		}
		running := 0
		for i := range st.Leases {
			if st.Leases[i].State == "running" {
				running++
			}
		}
		return running == leases, nil
	})
}

func (n *node) close() error {
	for _, j := range n.leases {
		j.Kill()
	}
	return errors.Join(n.Close(), os.RemoveAll(n.dir))
}
