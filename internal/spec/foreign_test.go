package spec_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
)

// The file of another program is called what it is, with the command that reads it, instead of a list of unknown keys.
func TestFilesOfOtherPrograms(t *testing.T) {
	parted, err := os.ReadFile("../cli/migparted/testdata/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inMap := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: default-mig-parted-config}\ndata:\n  config.yaml: |\n" +
		"    version: v1\n    mig-configs:\n      all-disabled:\n        - {devices: all, mig-enabled: false}\n"
	for name, c := range map[string]struct {
		file, text string
		line       int
		hint       string
	}{
		"as it is":           {"config.yaml", string(parted), 3, "'gpushare mig convert config.yaml'"},
		"as it is, as stdin": {"-", "version: v1\nmig-configs: {}\n", 2, "'gpushare mig convert FILE'"},
		"in a config map":    {"cm.yaml", inMap, 5, "'gpushare mig convert cm.yaml'"},
		"in a list of them": {
			"list.yaml", "apiVersion: v1\nkind: List\nitems:\n- kind: ConfigMap\n  data: {a: \"mig-configs: {}\"}\n", 5,
			"'gpushare mig convert list.yaml'",
		},
		"in a later document": {"two.yaml", "kind: Namespace\n---\n" + inMap, 7, "'gpushare mig convert two.yaml'"},
		"of a strange name":   {"my file.yaml", "version: v1\nmig-configs: {}\n", 2, `'gpushare mig convert "my file.yaml"'`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spec.Decode(c.file, []byte(c.text))
			refusal, ok := errors.AsType[*api.Error](err)
			if !ok || len(refusal.Fields) != 1 {
				t.Fatalf("it is accepted, or refused with %T %[1]v", err)
			}
			f := refusal.Fields[0]
			if !strings.Contains(f.Message, "MIG partition editor (mig-parted)") || !strings.Contains(refusal.Hint, c.hint) ||
				f.Line != c.line {
				t.Errorf("line %d says %q with the hint %q, want line %d and %q", f.Line, f.Message, refusal.Hint, c.line, c.hint)
			}
		})
	}
	// A spec that only mentions the key stays a spec with a mistake.
	_, err = spec.Decode("node.yaml", []byte("version: v1\nnode:\n  mig-configs: {}\n"))
	if err == nil || strings.Contains(err.Error(), "partition editor") {
		t.Errorf("the key in another place is said to be %v", err)
	}
}
