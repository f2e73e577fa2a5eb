package migparted_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/internal/cli/migparted"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/test/golden"
)

// TestEveryLabel converts every label of a file and checks that the result is a valid spec.
func TestEveryLabel(t *testing.T) {
	raw, err := os.ReadFile("testdata/mixed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := migparted.Read("mixed.yaml", raw)
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.Labels {
		l := &c.Labels[i]
		t.Run(l.Name, func(t *testing.T) {
			s := l.Spec("external")
			got := s.YAML("The label " + l.Name + ".")
			if _, err := spec.Decode(l.Name, []byte(got)); err != nil {
				t.Errorf("not a spec: %v\n%s", err, got)
			}
			golden.File(t, filepath.Join("testdata", l.Name+".txt"), got)
		})
	}
}

func TestConfigMap(t *testing.T) {
	c, err := migparted.Read("map.yaml", []byte(`
apiVersion: v1
kind: ConfigMap
metadata: {name: default-mig-parted-config}
data:
  config.yaml: |
    version: v1
    mig-configs:
      all-disabled:
        - devices: all
          mig-enabled: false
`))
	if err != nil || c.Label("all-disabled") == nil || c.Label("other") != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestTheDefaultConfiguration converts every label of the file that the partition editor is delivered with, whole: each PCI id
// has a name, every label is a spec, and only MIG off and MIG on without instances are not expressed.
func TestTheDefaultConfiguration(t *testing.T) {
	raw, err := os.ReadFile("testdata/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := migparted.Read("default.yaml", raw)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Labels) < 60 || len(c.Skipped) > 0 {
		t.Errorf("%d labels, skipped %q", len(c.Labels), c.Skipped)
	}
	for i := range c.Labels {
		l := &c.Labels[i]
		s := l.Spec("exclusive")
		if _, err := spec.Decode(l.Name, []byte(s.YAML("x"))); err != nil {
			t.Errorf("%s is not a spec: %v", l.Name, err)
		}
		if whole := l.Name != "all-enabled"; whole != (len(s.NotExpressed) == 0) {
			t.Errorf("%s does not express %q", l.Name, s.NotExpressed)
		}
		filters, ids := 0, 0
		for _, e := range l.Entries {
			filters += len(e.Filter)
		}
		for _, g := range s.GPUs {
			for _, id := range g.PCIID {
				ids++
				if board.NameOf(id.Device) == "" {
					t.Errorf("%s: the PCI id %s has no name", l.Name, id)
				}
			}
		}
		if filters != ids {
			t.Errorf("%s has %d PCI ids in its filters, its spec %d", l.Name, filters, ids)
		}
	}
}

// TestEveryPartOfAFile reads labels wherever a file may have them, and names what it does not read.
func TestEveryPartOfAFile(t *testing.T) {
	const one, two = "version: v1\nmig-configs: {one: [{devices: all, mig-enabled: false}]}\n", "version: v1\nmig-configs: {two: [{devices: all, mig-enabled: false}]}\n"
	configMap := func(data string) string { return "kind: ConfigMap\ndata:\n" + data }
	value := func(key, text string) string {
		return "  " + key + ": |\n    " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    ") + "\n"
	}
	indent := func(s string) string {
		return "- " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n  ") + "\n"
	}
	for name, c := range map[string]struct {
		file    string
		skipped []string
	}{
		"two documents":            {one + "---\n" + two, nil},
		"marks without a document": {"---\n---\n" + one + "---\n" + two + "---\n", nil},
		"two keys of a config map": {configMap(value("a.yaml", one) + value("b.yaml", two)), nil},
		"a config map with text of another kind": {
			configMap(value("a.yaml", one) + value("hooks.yaml", "hooks: {}\n") + value("b.yaml", two)), []string{`line 6: "hooks.yaml" of the config map has no mig-configs`},
		},
		"two documents in one key": {configMap(value("a.yaml", one+"---\n"+two)), nil},
		"a list":                   {"kind: List\nitems:\n" + indent(configMap(value("a", one))) + indent("kind: Namespace\n") + indent(configMap(value("a", two))), []string{"line 8: kind Namespace is no config map"}},
		"a config map and a file":  {configMap(value("a", one)) + "---\nkind: DaemonSet\n---\n" + two, []string{"line 7: kind DaemonSet is no config map"}},
		"binary data":              {"kind: ConfigMap\nbinaryData: {x: aGk=}\ndata:\n" + value("a", one+"---\n"+two), []string{"line 2: binaryData of the config map is not read"}},
		"merge keys":               {"version: v1\nmig-configs:\n  one: [&off {devices: all, mig-enabled: false}]\n  two: [{<<: *off, device-filter: 0x20B010DE}]\n", nil},
		"merge keys that have less precedence, and a list of them": {
			"version: v1\nmig-configs:\n  one: [&a {devices: all, mig-enabled: true, mig-devices: &d {1g.5gb: 7}}, &b {devices: [1], mig-devices: {2g.10gb: 3}, mig-enabled: true}]\n" +
				"  two: [{<<: [*a, *b], mig-devices: {<<: *d, 1g.5gb: 2}}]\n", nil,
		},
		"no instances where MIG is off": {"version: v1\nmig-configs:\n  one: [{devices: all, mig-enabled: false, mig-devices: {}}]\n  two: [{devices: all, mig-enabled: false, mig-devices: }]\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := migparted.Read("f", []byte(c.file))
			if err != nil {
				t.Fatalf("%v\n%s", err, c.file)
			}
			if got.Label("one") == nil || got.Label("two") == nil || len(got.Labels) != 2 {
				t.Errorf("labels %+v", got.Labels)
			}
			if d := cmp.Diff(c.skipped, got.Skipped); d != "" {
				t.Errorf("skipped (-want +got):\n%s", d)
			}
			if two := got.Label("two"); strings.HasPrefix(name, "merge keys that") && two != nil {
				e := two.Entries[0]
				if !e.All || !e.Enabled || len(e.Counts) != 1 || e.Counts[0].N != 2 {
					t.Errorf("merged: %+v", e)
				}
			}
		})
	}
}

// TestNothingBreaksOut converts texts that would be a line, a key or an item of their own in the spec.
func TestNothingBreaksOut(t *testing.T) {
	for name, c := range map[string]struct{ label, filter, profile string }{
		"a label with a newline":             {label: "x\\ngpus: [{select: {all: true}, mode: exclusive}]\\n"},
		"a label with a return":              {label: "x\\rversion: v2"},
		"a label with breaks of YAML 1.1":    {label: "x\\u0085a: b\\u2028c: d\\u2029e: f"},
		"a label with a control character":   {label: "x\\e[31m"},
		"a filter with a newline":            {filter: "0x\\nversion: v2"},
		"a profile with a comma in its name": {profile: "1g.5gb+me,gfx"},
	} {
		t.Run(name, func(t *testing.T) {
			l, f, p := "a", "0x20B010DE", "1g.5gb"
			for _, change := range []struct {
				to   *string
				from string
			}{{&l, c.label}, {&f, c.filter}, {&p, c.profile}} {
				if change.from != "" {
					*change.to = change.from
				}
			}
			got, err := migparted.Read(
				"f",
				fmt.Appendf(
					nil,
					"version: v1\nmig-configs:\n  \"%s\": [{device-filter: [\"%s\", 0x20B210DE], devices: all, mig-enabled: true, mig-devices: {\"%s\": 1}}]\n",
					l,
					f,
					p,
				),
			)
			if err != nil {
				t.Fatal(err)
			}
			s := got.Labels[0].Spec("external")
			text := s.YAML("From the label " + got.Labels[0].Name + ".")
			decoded, err := spec.Decode("f", []byte(text))
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if strings.ContainsAny(text, "\r\u0085\u2028\u2029\x1b") {
				t.Errorf("not escaped: %q", text)
			}
			if n := len(decoded.GPUs); n != 1 || len(decoded.GPUs[0].MIG.Layout) != 1 {
				t.Errorf("%d entries\n%s", n, text)
			}
		})
	}
}

// TestMIGOff converts MIG off to each mode.
func TestMIGOff(t *testing.T) {
	c, err := migparted.Read(
		"f",
		[]byte(
			"version: v1\nmig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}, {devices: [0], mig-enabled: false}]}\n",
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"external", "exclusive", "timeslice", "mps"} {
		s := c.Labels[0].Spec(mode)
		if len(s.GPUs) != 2 || s.GPUs[1].Mode != mode || (mode == "external") != (len(s.NotExpressed) > 0) {
			t.Errorf("%s: %+v", mode, s)
		}
		decoded, err := spec.Decode("f", []byte(s.YAML("x")))
		if err != nil {
			t.Fatal(err)
		}
		// A GPU with a display is no obstacle where it is only observed.
		gpus := []gpu.Identity{{UUID: "GPU-a", Index: 0, Display: true}, {UUID: "GPU-b", Index: 1}}
		if _, _, err := spec.Resolve(decoded, gpus); (mode == "external") != (err == nil) {
			t.Errorf("%s with a display: %v", mode, err)
		}
	}
}

func TestRefused(t *testing.T) {
	const entry = "version: v1\nmig-configs:\n  a:\n    - {%s}\n"
	for name, c := range map[string]struct{ file, want string }{
		"empty file":                     {"", "it is empty"},
		"not YAML":                       {"a: [", "cannot read f.yaml"},
		"another file":                   {"gpus: []\n", `unknown key "gpus"`},
		"no version":                     {"mig-configs: {a: []}\n", "version must be v1"},
		"another version":                {"version: v2\nmig-configs: {}\n", "version must be v1"},
		"no configurations":              {"version: v1\n", "it has no mig-configs"},
		"no label":                       {"version: v1\nmig-configs: {}\n", "has no label"},
		"a label without entries":        {"version: v1\nmig-configs: {a: []}\n", "f.yaml:2:18: a must be a list of entries"},
		"a label twice":                  {"version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: false}]\n  a: []\n", "f.yaml:4:3: mig-configs has \"a\" twice"},
		"unknown key":                    {fmt.Sprintf(entry, "devices: all, mig-enabled: false, colour: red"), `unknown key "colour"`},
		"no devices":                     {fmt.Sprintf(entry, "mig-enabled: false"), "the entry has no devices"},
		"no mig-enabled":                 {fmt.Sprintf(entry, "devices: all"), "the entry has no mig-enabled"},
		"not all":                        {fmt.Sprintf(entry, "devices: some, mig-enabled: false"), `"some": must be all or a list`},
		"negative number":                {fmt.Sprintf(entry, "devices: [-1], mig-enabled: false"), "invalid GPU number -1"},
		"on, without mig-devices":        {fmt.Sprintf(entry, "devices: all, mig-enabled: true"), "mig-devices is required"},
		"off, with instances":            {fmt.Sprintf(entry, "devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"), "mig-devices is not empty"},
		"not a profile":                  {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {big: 1}"), `cannot read MIG profile "big"`},
		"not a number":                   {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: many}"), `invalid number "many" of 1g.5gb`},
		"10^18 instances":                {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1000000000000000000}"), "1000000000000000000 of 1g.5gb are too many: a GPU has at most 16 instances"},
		"2*10^8 instances":               {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 200000000}"), "too many"},
		"too many together":              {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 9, 2g.10gb: 9}"), "9 of 2g.10gb are too many"},
		"more than a number":             {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 99999999999999999999999}"), "invalid number"},
		"a profile twice":                {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1, 1g.5gb: 2}"), `mig-devices has "1g.5gb" twice`},
		"a profile in two ways":          {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.24gb+gfx+me: 1, 1g.24gb+me+gfx: 2}"), "it has 1g.24gb+gfx+me twice"},
		"a number of a GPU of 10^9":      {fmt.Sprintf(entry, "devices: [1000000000], mig-enabled: false"), "invalid GPU number 1000000000"},
		"on, with null":                  {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: "), "mig-devices is required"},
		"a label in two documents":       {"version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}\n---\nversion: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}\n", "the label a is also at f.yaml:2"},
		"a later document that is wrong": {"version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}\n---\ngpus: []\n", `f.yaml:4:1: unknown key "gpus"`},
		"a merge key of itself":          {"version: v1\nmig-configs:\n  a: &a [{<<: *a, devices: all, mig-enabled: false}]\n", "its aliases make it too long"},
		"a merge key in itself":          {"version: v1\nmig-configs:\n  a: [&a {<<: *a, devices: all, mig-enabled: false}]\n", "its aliases make it too long"},
		"aliases of aliases":             {bomb(), "its aliases make it too long"},
		"a config map in a value":        {"kind: ConfigMap\ndata:\n  a: |\n    kind: ConfigMap\n    mig-configs: {}\n", "cannot be in another one"},
		"a list without items":           {"kind: List\n", "List has no items"},
		"only another kind":              {"kind: DaemonSet\n", "it has no mig-configs (line 1: kind DaemonSet is no config map)"},
		"negative count":                 {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}"), `invalid number "-1" of 1g.5gb`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := migparted.Read("f.yaml", []byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// bomb is a file whose lists have, with all aliases, 10^9 GPU numbers.
func bomb() string {
	var b strings.Builder
	b.WriteString("version: v1\nmig-configs:\n  a: [&e0 {devices: [" + strings.Repeat("0,", 100) + "], mig-enabled: false}]\n")
	for i := range 199 {
		b.WriteString(fmt.Sprintf("  a%d: [", i) + strings.Repeat("*e0,", 150) + "]\n")
	}
	return b.String()
}
