package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpushare/gpushare/kubelet/plugin"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// offersTimeout limits the reading of gpushared.
const offersTimeout = 20 * time.Second

// offered is a device, or a GPU of which there is none.
type offered struct {
	Device string   `json:"device,omitempty"`
	GPU    string   `json:"gpu"`   // its UUID
	Index  int      `json:"index"` // -1: the driver does not find it
	Type   string   `json:"type,omitempty"`
	Grants []string `json:"grants,omitempty"`
	Taints []string `json:"taints,omitempty"` // KEY:EFFECT, without the domain
	// Withheld is why claims get none of it; empty: it is in the API.
	Withheld string `json:"withheld,omitempty"`
}

// offers prints what the node offers to Kubernetes now, and why not the rest. It asks gpushared alone: it works without a cluster.
func offers(ctx context.Context, o *options, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, offersTimeout)
	defer cancel()
	daemon := o.daemon()
	defer daemon.Close()
	n, err := (&plugin.Node{Daemon: daemon, Tenant: o.tenant}).Read(ctx)
	if err != nil {
		return err
	}
	list := listed(n)
	if o.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"schema_version": 1, "tenant": o.tenant, "devices": list})
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tGPU\tTYPE\tGRANTS\tSTATE")
	for _, x := range list {
		device, kind, grants := x.Device, x.Type, strings.Join(x.Grants, ",")
		if device == "" {
			device, kind, grants = "-", "-", "-"
		}
		index := "-" // The driver does not find the GPU.
		if x.Index >= 0 {
			index = strconv.Itoa(x.Index)
		}
		state := "offered"
		switch {
		case x.Withheld != "":
			state = "not offered: " + x.Withheld
		case len(x.Taints) > 0:
			state = "offered, tainted: " + strings.Join(x.Taints, " ")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", device, index, kind, grants, state)
	}
	return t.Flush()
}

// listed are the devices in the order in which the scheduler tries them, and then the GPUs without one.
func listed(n *publish.Node) []offered {
	out := []offered{}
	all := publish.Offers(n)
	for i := range all {
		x := &all[i]
		d := offered{Device: x.Name, GPU: x.GPU, Index: x.Index(), Type: x.Type, Grants: x.Grants, Withheld: x.Withheld}
		for _, taint := range x.Device().Taints {
			d.Taints = append(d.Taints, strings.TrimPrefix(taint.Key, publish.Driver+"/")+":"+string(taint.Effect))
		}
		out = append(out, d)
	}
	for _, a := range publish.Without(n, all) {
		out = append(out, offered{GPU: a.UUID, Index: a.Index, Withheld: a.Why})
	}
	return out
}
