package spec_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/spec"
)

// eight are the GPUs of a DGX, given in another order than the driver's.
func eight(change ...func([]gpu.Identity)) []gpu.Identity {
	gpus := make([]gpu.Identity, 8)
	for i := range gpus {
		gpus[7-i] = gpu.Identity{UUID: uuid(i), Index: i, PCI: fmt.Sprintf("0000:%02x:00.0", 7+i), Model: "NVIDIA A100-SXM4-40GB"}
	}
	for _, f := range change {
		f(gpus)
	}
	return gpus
}

func uuid(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%d", i)) }

func TestResolve(t *testing.T) {
	text := func(entries, grants string) string {
		return "version: v1\ngpus: [" + entries + "]\ntenants: [{name: t, grants: [" + grants + "]}]\n"
	}
	display := func(g []gpu.Identity) { g[0].Display = true } // GPU 7
	slash := func(g []gpu.Identity) { g[0].Model = "NVIDIA X/Y 80GB" }
	for name, c := range map[string]struct {
		text     string
		gpus     []gpu.Identity
		entries  map[gpu.UUID]int
		grant    []gpu.UUID // of t/g
		warnings []string
		errors   []string
	}{
		"the more exact wins": {
			text: text("{select: {all: true}, mode: exclusive}, {select: {model: '*A100*'}, mode: mps}, {select: {index: [3, 4]}, mode: timeslice}, {select: {pci: '0a:00.0'}, mode: external}, {select: {uuid: GPU-4}, mode: external}",
				"{name: g, mps: {share: 10%}}"),
			entries: map[gpu.UUID]int{"GPU-0": 1, "GPU-1": 1, "GPU-2": 1, "GPU-3": 3, "GPU-4": 4, "GPU-5": 1, "GPU-6": 1, "GPU-7": 1},
			grant:   []gpu.UUID{"GPU-0", "GPU-1", "GPU-2", "GPU-5", "GPU-6", "GPU-7"},
		},
		"a PCI id, with a subsystem before without, after an index and before a model": {
			text: text("{select: {model: '*A100*'}, mode: mps}, {select: {pci_id: '0x20B010DE'}, mode: timeslice}, {select: {pci_id: '10de:20b0:10de:1450'}, mode: exclusive}, {select: {index: 0}, mode: external}",
				"{name: g, exclusive: 1, gpus: {pci_id: '10DE:20B0:10de:1450'}}"),
			gpus: eight(func(g []gpu.Identity) {
				for i := range g[2:] { // GPUs 0 to 5
					g[2+i].PCIDevice, g[2+i].PCISubsystem = 0x20B010DE, 0x134F10DE
				}
				g[7].PCISubsystem, g[6].PCISubsystem = 0x145010DE, 0x145010DE // GPUs 0 and 1
			}),
			entries: map[gpu.UUID]int{"GPU-0": 3, "GPU-1": 2, "GPU-2": 1, "GPU-3": 1, "GPU-4": 1, "GPU-5": 1, "GPU-6": 0, "GPU-7": 0},
			grant:   []gpu.UUID{"GPU-1"},
		},
		"a PCI id that no GPU has": {
			text:     text("{select: {all: true}, mode: exclusive}, {select: {pci_id: '10de:2330'}, mode: mps}", "{name: g, exclusive: 1}"),
			entries:  map[gpu.UUID]int{"GPU-0": 0, "GPU-1": 0, "GPU-2": 0, "GPU-3": 0, "GPU-4": 0, "GPU-5": 0, "GPU-6": 0, "GPU-7": 0},
			grant:    []gpu.UUID{"GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"},
			warnings: []string{"gpus[1].select.pci_id: no GPU here has PCI id 10de:2330 (there are 8, index 0 to 7): write optional: true if that is meant"},
		},
		"a grant's selector and the mode both count": {
			text:    text("{select: {index: [0, 1]}, mode: timeslice}, {select: {index: 2}, mode: mps}", "{name: g, timeslice: {share: 10%}, gpus: {index: 1}}"),
			entries: map[gpu.UUID]int{"GPU-0": 0, "GPU-1": 0, "GPU-2": 1},
			grant:   []gpu.UUID{"GPU-1"},
		},
		"a grant's wide selector keeps what fits": {
			text:    text("{select: {index: [0, 1]}, mode: timeslice}, {select: {index: 2}, mode: mps}", "{name: g, mps: {share: 10%}, gpus: {all: true}}"),
			entries: map[gpu.UUID]int{"GPU-0": 0, "GPU-1": 0, "GPU-2": 1},
			grant:   []gpu.UUID{"GPU-2"},
		},
		"a grant's GPU of another mode": {
			text:   text("{select: {index: 0}, mode: timeslice}", "{name: g, mps: {share: 10%}, gpus: {index: 0}}"),
			errors: []string{"tenants[0].grants[0].gpus.index: GPU 0 (GPU-0) is in mode timeslice, this grant needs mps: name a GPU of that mode, or change the mode"},
		},
		"a grant's GPU that is unmanaged": {
			text:   text("", "{name: g, mps: {share: 10%}, gpus: {index: 0}}"),
			errors: []string{"tenants[0].grants[0].gpus.index: GPU 0 (GPU-0) is in mode unmanaged, this grant needs mps: name a GPU of that mode, or change the mode"},
		},
		"a grant's GPU that is absent": {
			text:   text("{select: {index: 0}, mode: mps}", "{name: g, mps: {share: 10%}, gpus: {index: 9}}"),
			errors: []string{"tenants[0].grants[0].gpus.index: no GPU here has index 9 (there are 8, index 0 to 7): correct it"},
		},
		"a grant that nothing fits": {
			text:     text("", "{name: g, exclusive: 1}"),
			entries:  map[gpu.UUID]int{},
			grant:    []gpu.UUID{},
			warnings: []string{"tenants[0].grants[0]: no GPU here is in mode exclusive for this grant: no user can use it"},
		},
		"a grant of more GPUs than there are": {
			text:     text("{select: {index: 0}, mode: exclusive}", "{name: g, exclusive: 2}"),
			entries:  map[gpu.UUID]int{"GPU-0": 0},
			grant:    []gpu.UUID{"GPU-0"},
			warnings: []string{"tenants[0].grants[0].exclusive: only 1 GPUs are in mode exclusive for this grant: a lease of 2 never fits"},
		},
		"nothing matches": {
			text: text("{select: {index: [0, 8]}, mode: external}, {select: {uuid: GPU-x}, mode: external}, {select: {pci: 'ff:00.0'}, mode: external}, {select: {model: H200}, mode: external}", "{name: g, exclusive: 1}"),
			errors: []string{
				"gpus[0].select.index[1]: no GPU here has index 8 (there are 8, index 0 to 7): correct it, or write optional: true",
				"gpus[1].select.uuid: no GPU here has GPU-x (there are 8, index 0 to 7): correct it, or write optional: true",
				"gpus[2].select.pci: no GPU here has ff:00.0 (there are 8, index 0 to 7): correct it, or write optional: true",
			},
			warnings: []string{`gpus[3].select.model: no GPU here has model "H200" (there are 8, index 0 to 7): write optional: true if that is meant`},
		},
		"optional is silent": {
			text:     text("{select: {index: 8}, mode: exclusive, optional: true}, {select: {model: H200}, mode: external, optional: true}", "{name: g, exclusive: 1, gpus: {index: 8}}"),
			entries:  map[gpu.UUID]int{},
			grant:    []gpu.UUID{},
			warnings: []string{"tenants[0].grants[0].gpus.index: no GPU here has index 8 (there are 8, index 0 to 7)", "tenants[0].grants[0]: no GPU here is in mode exclusive for this grant: no user can use it"},
		},
		"no GPUs at all": {
			text:     text("{select: {all: true}, mode: exclusive}", "{name: g, exclusive: 1}"),
			gpus:     []gpu.Identity{},
			entries:  map[gpu.UUID]int{},
			grant:    []gpu.UUID{},
			warnings: []string{"gpus[0].select.all: there are no GPUs here: write optional: true if that is meant", "tenants[0].grants[0]: no GPU here is in mode exclusive for this grant: no user can use it"},
		},
		"a tie": {
			text:   text("{select: {uuid: GPU-3}, mode: exclusive}, {select: {pci: '00000000:0A:00.0'}, mode: mps}, {select: {model: '*A100*'}, mode: external}, {select: {model: 'NVIDIA A100*'}, mode: external}", "{name: g, exclusive: 1}"),
			errors: append([]string{"gpus[1].select.pci: GPU 3 (GPU-3) is selected as exactly by gpus[0] (GPU-3) as by gpus[1] (00000000:0A:00.0): name it in one of them only"}, modelTies(0, 1, 2, 4, 5, 6, 7)...),
		},
		"a display": {
			text:   text("{select: {all: true}, mode: exclusive}", "{name: g, exclusive: 1}"),
			gpus:   eight(display),
			errors: []string{"gpus[0].select.all: GPU 7 (GPU-7) drives a display: write graphics: true in gpus[0] to share it anyway"},
		},
		"a display that may be shared": {
			text:    text("{select: {index: 7}, mode: exclusive, graphics: true}", "{name: g, exclusive: 1}"),
			gpus:    eight(display),
			entries: map[gpu.UUID]int{"GPU-7": 0},
			grant:   []gpu.UUID{"GPU-7"},
		},
		"a model with a slash": {
			text:    text("{select: {model: 'NVIDIA X*80GB'}, mode: exclusive}", "{name: g, exclusive: 1}"),
			gpus:    eight(slash),
			entries: map[gpu.UUID]int{"GPU-7": 0},
			grant:   []gpu.UUID{"GPU-7"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := spec.Decode("f", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if c.gpus == nil {
				c.gpus = eight()
			}
			got, warnings, err := spec.Resolve(s, c.gpus)
			if d := cmp.Diff(c.warnings, texts(warnings)); d != "" {
				t.Errorf("warnings (-want +got):\n%s", d)
			}
			var errs []string
			if err != nil {
				refusal, _ := errors.AsType[*api.Error](err)
				errs = texts(refusal.Fields)
				if refusal.Kind != api.KindInvalid || !strings.HasPrefix(refusal.Message, errs[0]) {
					t.Errorf("the refusal is %+v", refusal)
				}
			}
			if d := cmp.Diff(c.errors, errs); d != "" {
				t.Fatalf("errors (-want +got):\n%s", d)
			}
			if err != nil {
				return
			}
			if d := cmp.Diff(c.entries, got.GPUs); d != "" {
				t.Errorf("entries (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.grant, got.Grants[spec.GrantKey("t", "g")]); d != "" {
				t.Errorf("grant (-want +got):\n%s", d)
			}
		})
	}
}

func modelTies(gpus ...int) (texts []string) {
	for _, i := range gpus {
		texts = append(
			texts,
			fmt.Sprintf(
				`gpus[3].select.model: GPU %d (%s) is selected as exactly by gpus[2] (model "*A100*") as by gpus[3] (model "NVIDIA A100*"): name it in one of them only`,
				i,
				uuid(i),
			),
		)
	}
	return texts
}

func texts(fields []api.FieldError) (texts []string) {
	for _, f := range fields {
		texts = append(texts, f.Error())
	}
	return texts
}

func TestResolveExample(t *testing.T) {
	text := files(t, "../../examples/dgx-a100.yaml")["../../examples/dgx-a100.yaml"]
	s, err := spec.Decode("dgx-a100.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	r, warnings, err := spec.Resolve(s, eight())
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if _, managed := r.GPUs["GPU-7"]; managed || len(r.GPUs) != 7 {
		t.Errorf("the entries are %v", r.GPUs)
	}
	for _, grant := range []string{"vision/dev", "speech/dev"} {
		if d := cmp.Diff([]gpu.UUID{"GPU-4"}, r.Grants[grant]); d != "" {
			t.Errorf("%s: %s", grant, d)
		}
	}
}

// A GPU that is missing has no index while another GPU has it, and is not named by one.
func TestResolveNextToAGPUWithoutAnIndex(t *testing.T) {
	gpus := eight()
	gpus[0].Index, gpus[0].Display = -1, true // GPU-7
	for text, want := range map[string]string{
		"{select: {index: 9}, mode: exclusive}":    "there are 8, index 0 to 6",
		"{select: {uuid: GPU-7}, mode: exclusive}": "GPU GPU-7 drives a display",
	} {
		s, err := spec.Decode("f", []byte("version: v1\ngpus: ["+text+"]"))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := spec.Resolve(s, gpus); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "-1") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
