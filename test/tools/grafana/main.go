// Command grafana decodes dashboards with the schema that the project Grafana generates its own code from, and prints what does
// not comply: a field that is unknown, that is missing or that has another type, in the dashboard, its panels, their options and
// their queries. It runs no Grafana.
//
// It is a module of its own, so that the product does not depend on that of Grafana.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(files []string, stdout, stderr io.Writer) int {
	if len(files) == 0 {
		fmt.Fprintln(stderr, "grafana: usage: grafana DASHBOARD.json ...")
		return 2
	}
	r := cog.NewRuntime()
	for _, v := range []variants.PanelcfgConfig{stat.VariantConfig(), table.VariantConfig(), timeseries.VariantConfig()} {
		r.RegisterPanelcfgVariant(v)
	}
	r.RegisterDataqueryVariant(prometheus.VariantConfig())
	code := 0
	for _, file := range files {
		counted, err := check(file)
		if err != nil {
			fmt.Fprintf(stderr, "cannot accept %s: %v\n", file, err)
			code = 1
			continue
		}
		fmt.Fprintf(stdout, "%s: %s\n", file, counted)
	}
	return code
}

// check returns what it has checked of a dashboard.
func check(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	// Where everything complies the list of errors is empty and not nil, and the panels are left out of the result. So it is decoded
	// once more.
	var errs cog.BuildErrors
	if err := new(dashboard.Dashboard).UnmarshalJSONStrict(raw); err != nil && (!errors.As(err, &errs) || len(errs) > 0) {
		return "", err
	}
	var d dashboard.Dashboard
	if err := json.Unmarshal(raw, &d); err != nil {
		return "", err
	}
	if err := d.Validate(); err != nil {
		return "", err
	}
	queries := 0
	for _, p := range d.Panels {
		if p.Panel == nil {
			return "", fmt.Errorf("a row, which this program does not look into")
		}
		// What has no schema here is decoded without one.
		switch p.Panel.Options.(type) {
		case *stat.Options, *table.Options, *timeseries.Options:
		default:
			return "", fmt.Errorf("the panel %q is a %s, whose options this program does not know", *p.Panel.Title, p.Panel.Type)
		}
		for _, q := range p.Panel.Targets {
			if _, ok := q.(*prometheus.Dataquery); !ok {
				return "", fmt.Errorf("a query of the panel %q is %T, not one of Prometheus", *p.Panel.Title, q)
			}
			queries++
		}
	}
	return fmt.Sprintf("%d panels, %d queries, %d variables", len(d.Panels), queries, len(d.Templating.List)), nil
}
