package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// identity compares the GPUs of gpushare with those of nvidia-smi.
func (t *test) identity(ctx context.Context) error {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return fmt.Errorf("cannot read the kernel's release: %w", err)
	}
	t.say("# %s", t.host.name())
	t.title("The node")
	t.say("kernel %s\n", strings.TrimSpace(string(kernel)))
	for _, verb := range [][]string{{"version"}, {"gpu", "list"}, {"doctor"}} {
		r := t.node.CLI(ctx, verb...)
		t.say("```console\n$ gpushare %s\n%s%s```\n", strings.Join(verb, " "), r.Out, r.Err)
	}
	st, err := t.node.Client().Status(ctx)
	if err != nil {
		return err
	}
	others, err := t.host.observe(ctx)
	if err != nil {
		return err
	}
	t.title("Compared with nvidia-smi")
	if others == nil {
		t.say("There is no other program to compare with.")
		return nil
	}
	t.check(len(st.GPUs) == len(others), "%d GPUs, nvidia-smi has %d", len(st.GPUs), len(others))
	for _, o := range others {
		g := byUUID(st, o.uuid)
		if g == nil {
			t.check(false, "GPU %d: gpushare has no %s", o.index, o.uuid)
			continue
		}
		t.compare(g, &o, st.Node.Driver)
	}
	return nil
}

func (t *test) compare(g *api.GPUStatus, o *observedGPU, driver string) {
	at := fmt.Sprintf("GPU %d: ", o.index)
	t.check(g.State == "ok", "%sstate %s %s", at, g.State, g.Reason)
	t.check(g.Index == o.index, "%sindex %d", at, g.Index)
	t.check(g.PCI == o.pci, "%sPCI %s, nvidia-smi %s", at, g.PCI, o.pci)
	t.check(g.Model == o.model, "%smodel %q, nvidia-smi %q", at, g.Model, o.model)
	total := float64(g.Memory.Total) / (1 << 20)
	t.check(math.Abs(total-o.totalMiB) <= o.totalMiB/100, "%smemory %.0f MiB, nvidia-smi %.0f MiB", at, total, o.totalMiB)
	t.check((g.MIG != nil && g.MIG.Enabled) == o.mig, "%sMIG %v, nvidia-smi %v", at, g.MIG != nil && g.MIG.Enabled, o.mig)
	t.check(driver == o.driver, "%sdriver %s, nvidia-smi %s", at, driver, o.driver)
	t.say("- GPU %d: used %.0f MiB, nvidia-smi %.0f MiB; compute mode %s; %d compute processes", o.index,
		float64(g.Memory.Used)/(1<<20), o.usedMiB, o.computeMode, o.computeProcesses)
}

func byUUID(st *api.Status, uuid string) *api.GPUStatus {
	for i := range st.GPUs {
		if st.GPUs[i].UUID == uuid {
			return &st.GPUs[i]
		}
	}
	return nil
}
