package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const examples = "../../examples/monitoring/"

func readExample(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(examples + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var selector = regexp.MustCompile(`\b(gpushare_[a-z_]+)(?:\{([^}]*)\})?`)

// recorded are names of recorded series: level:metric:operation.
var recorded = regexp.MustCompile(`\b[a-z_]+:gpushare_[a-z_]+:[a-z0-9]+\b`)

// checkNames reports metrics and labels of an expression that neither the catalog nor the recording rules have.
func checkNames(t *testing.T, where, expression string, records ...string) {
	t.Helper()
	expression = recorded.ReplaceAllStringFunc(expression, func(name string) string {
		if !slices.Contains(records, name) {
			t.Errorf("%s reads %s, which no rule records before", where, name)
		}
		return ""
	})
	for _, m := range selector.FindAllStringSubmatch(expression, -1) {
		i := slices.IndexFunc(Catalog(), func(c *Metric) bool { return c.Name == m[1] })
		if i < 0 {
			t.Errorf("%s reads %s, which does not exist", where, m[1])
			continue
		}
		labels := append([]string{"instance", "job"}, Catalog()[i].Labels...)
		for _, l := range regexp.MustCompile(`(\w+)(?:=|!=|=~|!~)"`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, l[1]) {
				t.Errorf("%s reads the label %s of %s, which has %q", where, l[1], m[1], labels)
			}
		}
	}
}

// The alert rules read metrics that exist, and each has a test. test/tools runs the tests with promtool.
func TestAlertRules(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(readExample(t, "alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	tests := string(readExample(t, "alerts_test.yaml"))
	for _, g := range rules.Groups {
		if len(g.Rules) < 10 {
			t.Errorf("there are only %d rules", len(g.Rules))
		}
		for _, r := range g.Rules {
			checkNames(t, r.Alert, r.Expr)
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" ||
				r.Annotations["description"] == "" {
				t.Errorf("%s has the labels %v and the annotations %v", r.Alert, r.Labels, r.Annotations)
			}
			if !strings.Contains(tests, "alertname: "+r.Alert+"\n        exp_alerts:\n") ||
				!strings.Contains(tests, "alertname: "+r.Alert+"\n        exp_alerts: []\n") {
				t.Errorf("alerts_test.yaml has no test in which %s fires, or none in which it does not", r.Alert)
			}
		}
	}
}

// recordingRules checks the recording rules, and returns the names of what they record. test/tools runs their test with promtool.
func recordingRules(t *testing.T) []string {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct{ Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(readExample(t, "recording.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	tests := string(readExample(t, "recording_test.yaml"))
	var records []string
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			checkNames(t, r.Record, r.Expr, records...) // Those of a group are evaluated one after the other.
			if !recorded.MatchString(r.Record) || slices.Contains(records, r.Record) {
				t.Errorf("%q is no name of its own as level:metric:operation", r.Record)
			}
			if !strings.Contains(tests, "- expr: "+r.Record+"\n") {
				t.Errorf("recording_test.yaml has no test of %s", r.Record)
			}
			records = append(records, r.Record)
		}
	}
	if len(records) < 10 {
		t.Errorf("there are only %d rules", len(records))
	}
	return records
}

// The recording rules read metrics that exist, have a test each, and the dashboard of nodes reads all that is recorded for one.
func TestRecordingRules(t *testing.T) {
	nodes := string(readExample(t, "dashboard-nodes.json"))
	for _, r := range recordingRules(t) {
		if strings.HasPrefix(r, "instance:") && !strings.Contains(nodes, r) {
			t.Errorf("the dashboard of nodes does not read %s", r)
		}
	}
}

type panel struct {
	ID          int
	Type, Title string
	Datasource  source
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct {
		RefID, Expr string
		Datasource  source
	}
}

type source struct{ Type, UID string }

// Grafana imports each dashboard as it is: it selects its source of data by a variable, and has an identity of its own.
func TestDashboard(t *testing.T) {
	for name, uid := range map[string]string{"dashboard.json": "gpushare-node", "dashboard-nodes.json": "gpushare-nodes"} {
		t.Run(name, func(t *testing.T) { testDashboard(t, name, uid, recordingRules(t)) })
	}
}

func testDashboard(t *testing.T, name, uid string, records []string) {
	var d struct {
		UID, Title    string
		SchemaVersion int
		Templating    struct {
			List []struct {
				Name, Type, Definition string
				Datasource             source
			}
		}
		Panels []panel
	}
	if err := json.Unmarshal(readExample(t, name), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID != uid || d.Title == "" || d.SchemaVersion < 36 {
		t.Errorf("it has the uid %q, the title %q and the schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	want := source{"prometheus", "${datasource}"}
	variables := []string{"__rate_interval"}
	for i, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if (i == 0) != (v.Name == "datasource" && v.Type == "datasource") || i > 0 && v.Datasource != want {
			t.Errorf("the variable %s is %+v", v.Name, v)
		}
		checkNames(t, v.Name, v.Definition)
	}
	used := map[int]bool{}
	for i, p := range d.Panels {
		if used[p.ID] || p.ID == 0 || p.Title == "" || p.Datasource != want || len(p.Targets) == 0 ||
			!slices.Contains([]string{"stat", "table", "timeseries"}, p.Type) {
			t.Errorf("the panel %q is %+v", p.Title, p)
		}
		used[p.ID] = true
		g := p.GridPos
		if g.X < 0 || g.W <= 0 || g.H <= 0 || g.X+g.W > 24 {
			t.Errorf("the panel %q is at %+v, and a row has 24 columns", p.Title, g)
		}
		for _, q := range d.Panels[:i] {
			if o := q.GridPos; g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
				t.Errorf("the panels %q and %q overlap", p.Title, q.Title)
			}
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.Datasource != want || q.Expr == "" || q.RefID == "" || refs[q.RefID] {
				t.Errorf("a query of the panel %q is %+v", p.Title, q)
			}
			refs[q.RefID] = true
			checkNames(t, p.Title, q.Expr, records...)
			for _, v := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if !slices.Contains(variables, v[1]) {
					t.Errorf("the panel %q reads the variable %s, which does not exist", p.Title, v[1])
				}
			}
		}
	}
}
