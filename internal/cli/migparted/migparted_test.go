package migparted_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/internal/cli/migparted"
	"github.com/gpushare/gpushare/internal/spec"
)

var update = flag.Bool("update", false, "write the expected specs")

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
			s, err := l.Spec()
			if err != nil {
				t.Fatal(err)
			}
			got := s.YAML("The label " + l.Name + ".")
			if _, err := spec.Decode(l.Name, []byte(got)); err != nil {
				t.Errorf("not a spec: %v\n%s", err, got)
			}
			file := filepath.Join("testdata", l.Name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if d := cmp.Diff(string(want), got); err != nil || d != "" {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
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

func TestRefused(t *testing.T) {
	const entry = "version: v1\nmig-configs:\n  a:\n    - {%s}\n"
	for name, c := range map[string]struct{ file, want string }{
		"empty file":              {"", "it is empty"},
		"not YAML":                {"a: [", "cannot read f.yaml"},
		"another file":            {"gpus: []\n", `unknown key "gpus"`},
		"no version":              {"mig-configs: {a: []}\n", "version must be v1"},
		"another version":         {"version: v2\nmig-configs: {}\n", "version must be v1"},
		"no configurations":       {"version: v1\n", "it has no mig-configs"},
		"no label":                {"version: v1\nmig-configs: {}\n", "has no label"},
		"a label without entries": {"version: v1\nmig-configs: {a: []}\n", "f.yaml:2:18: a must be a list of entries"},
		"a label twice":           {"version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: false}]\n  a: []\n", "f.yaml:4:3: mig-configs has \"a\" twice"},
		"unknown key":             {fmt.Sprintf(entry, "devices: all, mig-enabled: false, colour: red"), `unknown key "colour"`},
		"no devices":              {fmt.Sprintf(entry, "mig-enabled: false"), "the entry has no devices"},
		"no mig-enabled":          {fmt.Sprintf(entry, "devices: all"), "the entry has no mig-enabled"},
		"not all":                 {fmt.Sprintf(entry, "devices: some, mig-enabled: false"), `"some": must be all or a list`},
		"negative number":         {fmt.Sprintf(entry, "devices: [-1], mig-enabled: false"), "invalid GPU number -1"},
		"on, without mig-devices": {fmt.Sprintf(entry, "devices: all, mig-enabled: true"), "mig-devices is required"},
		"off, with instances":     {fmt.Sprintf(entry, "devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"), "mig-devices is not empty"},
		"not a profile":           {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {big: 1}"), `cannot read MIG profile "big"`},
		"not a number":            {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: many}"), `invalid number "many" of 1g.5gb`},
		"negative count":          {fmt.Sprintf(entry, "devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}"), `invalid number "-1" of 1g.5gb`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := migparted.Read("f.yaml", []byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
