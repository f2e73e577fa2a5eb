package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/daemon/settings"
	"github.com/gpushare/gpushare/internal/spec"
)

// byOthers are the keys of files of other projects that documents have, with the test that gives them to a program of that project.
var byOthers = map[string]string{
	"mig-configs":       "TestConsoleBlocks: the commands of its document read it",
	"scrape_configs":    "test/tools: TestScrapeConfigOfTheDocument",
	"tls_server_config": "test/tools: TestScrapeConfigOfTheDocument",
	"hosts":             "test/tools: TestAnsibleDocumentation", // a play
	"name":              "test/tools: TestAnsibleDocumentation", // a task
}

// Every block of YAML in the documentation is accepted by what would read it: specs and parts of specs by the decoder of specs, settings
// by that of settings. A block that nothing reads is an error.
func TestYAMLBlocks(t *testing.T) {
	specs, files := 0, 0
	for _, of := range documentNames(t) {
		for _, b := range document(t, of).Blocks {
			if b.Language != "yaml" {
				continue
			}
			key := firstKey(t, b.Text)
			name := fmt.Sprintf("%s:%d", of, b.Line)
			whole := b.Text
			switch key {
			case "grants":
				whole = "tenants:\n  - name: any\n" + strings.ReplaceAll("\n"+b.Text, "\n", "\n    ")
				fallthrough
			case "node", "gpus", "tenants":
				whole = "version: v1\n" + whole
				fallthrough
			case "version":
				if strings.Contains(whole, "mig-configs:") {
					continue
				}
				specs++
				if _, err := spec.Decode(name, []byte(whole)); err != nil {
					t.Errorf("%s is refused: %v", name, err)
				}
			case "metrics_address", "job_files_dir":
				files++
				written := filepath.Join(t.TempDir(), "gpushared.yaml")
				if err := os.WriteFile(written, []byte(whole), 0o600); err != nil {
					t.Fatal(err)
				}
				if _, err := settings.Load(written); err != nil {
					t.Errorf("%s is refused: %v", name, err)
				}
			default:
				if _, ok := byOthers[key]; !ok {
					t.Errorf("%s begins with %s: no test reads it", name, key)
				}
			}
		}
	}
	if specs < 7 || files < 2 {
		t.Errorf("%d specs and %d settings were found", specs, files)
	}
}

// firstKey is the first key of a mapping, or of the first item of a list.
func firstKey(t *testing.T, text string) string {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	at := n.Content[0]
	if at.Kind == yaml.SequenceNode {
		at = at.Content[0]
	}
	return at.Content[0].Value
}
