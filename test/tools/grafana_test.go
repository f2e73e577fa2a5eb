//go:build tools

package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// schemaOfGrafana builds the program that decodes dashboards with the schema of Grafana.
func schemaOfGrafana(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "grafana")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Dir, cmd.Env = "grafana", append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the module of Grafana's schema: %v\n%s", err, out)
	}
	return program
}

// The dashboard complies with the schema that Grafana generates its own code from, and the program that says so refuses dashboards
// that do not.
func TestDashboardCompliesWithTheSchemaOfGrafana(t *testing.T) {
	program := schemaOfGrafana(t)
	b, all := dashboardOf(t, "dashboard.json")
	nodes, ofNodes := dashboardOf(t, "dashboard-nodes.json")
	file := filepath.Join(t.TempDir(), "dashboard-nodes.json")
	if err := os.WriteFile(file, nodes, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(shortContext(t), program, file).
		CombinedOutput(); err != nil ||
		!strings.Contains(string(out), ofNodes) {
		t.Errorf("of the dashboard of nodes it answered %v: %s", err, out)
	}
	cases := map[string]struct{ old, new, answer string }{
		"as it is":                      {answer: all},
		"an unknown field of it":        {`"graphTooltip":`, `"graphToolTip":`, "unexpected field 'graphToolTip'"},
		"an unknown option of a table":  {`"showHeader":`, `"showHeaders":`, "unexpected field 'showHeaders'"},
		"an option is missing":          {`"graphMode": "none",`, ``, "options.graphMode: required field is missing"},
		"a unit that is a number":       {`"unit": "percentunit"`, `"unit": 1`, "fieldConfig"},
		"an unknown field of a query":   {`"expr":`, `"query":`, "unexpected field 'query'"},
		"a variable without its name":   {`"name": "tenant",`, ``, "templating.list[2].name: required field is missing"},
		"a panel that it does not know": {`"type": "timeseries"`, `"type": "graph"`, "options this program does not know"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			text := strings.ReplaceAll(string(b), c.old, c.new)
			if c.old == "" {
				text = string(b)
			}
			if !json.Valid([]byte(text)) || c.old != "" && text == string(b) {
				t.Fatal("the case is not what it says")
			}
			file := filepath.Join(t.TempDir(), "dashboard.json")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(shortContext(t), program, file).CombinedOutput()
			if (err == nil) != (c.old == "") || !strings.Contains(string(out), c.answer) {
				t.Errorf("it answered %v: %s", err, out)
			}
		})
	}
}

// dashboardOf reads a dashboard, and counts what it has as the program does.
func dashboardOf(t *testing.T, name string) (b []byte, counts string) {
	t.Helper()
	b, err := os.ReadFile(examples + name)
	if err != nil {
		t.Fatal(err)
	}
	var has struct {
		Panels     []struct{ Targets []json.RawMessage }
		Templating struct{ List []json.RawMessage }
	}
	if err := json.Unmarshal(b, &has); err != nil || len(has.Panels) == 0 {
		t.Fatalf("%s has %d panels: %v", name, len(has.Panels), err)
	}
	queries := 0
	for _, p := range has.Panels {
		queries += len(p.Targets)
	}
	return b, fmt.Sprintf("%d panels, %d queries, %d variables", len(has.Panels), queries, len(has.Templating.List))
}
