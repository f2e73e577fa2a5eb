package spec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/rename"
)

// tenants is a spec of these tenants, each a line of YAML.
func tenants(lines ...string) string {
	return "version: v1\ntenants:\n  - " + strings.Join(lines, "\n  - ") + "\n"
}

const (
	visionTrain  = "{name: vision, grants: [{name: train, exclusive: 1}, {name: dev, exclusive: 1}]}"
	imagingLarge = "{name: imaging, renamed_from: vision, grants: [{name: large, renamed_from: train, exclusive: 1}, {name: dev, exclusive: 1}]}"
)

func decoded(t *testing.T, text string) *api.Spec {
	t.Helper()
	s, err := Decode("spec.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// said is renames as text.
func said(list rename.List) string {
	var out []string
	for _, r := range list {
		out = append(out, fmt.Sprintf("%s/%s→%s/%s@%d", r.From.Tenant, r.From.Grant, r.To.Tenant, r.To.Grant, r.Generation))
	}
	return strings.Join(out, " ")
}

func TestRenames(t *testing.T) {
	both := "vision/→imaging/@2 vision/train→imaging/large@2"
	for name, c := range map[string]struct {
		was, is string
		want    string
		err     string
	}{
		"a tenant and a grant": {was: tenants(visionTrain), is: tenants(imagingLarge), want: both},
		"made already":         {was: tenants(imagingLarge), is: tenants(imagingLarge)},
		"of no tenant":         {was: tenants("{name: other}"), is: tenants(imagingLarge)},
		"without the key":      {was: tenants(visionTrain), is: tenants(strings.Replace(imagingLarge, "renamed_from: vision, ", "", 1))},
		"only a grant": {
			was: tenants(visionTrain),
			is:  tenants("{name: vision, grants: [{name: large, renamed_from: train, exclusive: 1}]}"), want: "vision/train→vision/large@2",
		},
		"a grant of another tenant": {
			was: tenants(visionTrain, "{name: other}"),
			is:  tenants("{name: vision}", "{name: other, grants: [{name: large, renamed_from: train, exclusive: 1}]}"),
		},
		"two tenants into one": {
			was: tenants(visionTrain, "{name: imaging}"), is: tenants(imagingLarge),
			err: "tenants[0].renamed_from: tenant vision cannot become imaging: the spec in force has both",
		},
		"two grants into one": {
			was: tenants(visionTrain), is: tenants("{name: vision, grants: [{name: dev, renamed_from: train, exclusive: 1}]}"),
			err: "tenants[0].grants[0].renamed_from: grant train cannot become dev",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Renames(decoded(t, c.was), decoded(t, c.is), 2)
			if said(got) != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("it is %q, %v", said(got), err)
			}
		})
	}
}

// Back to the spec of generation 1: what is called otherwise since gets its name again, unless that is of another tenant now.
func TestBack(t *testing.T) {
	recorded := rename.List{
		{Generation: 2, From: rename.Name{Tenant: "vision"}, To: rename.Name{Tenant: "imaging"}},
		{Generation: 2, From: rename.Name{Tenant: "vision", Grant: "train"}, To: rename.Name{Tenant: "imaging", Grant: "large"}},
		{Generation: 3, From: rename.Name{Tenant: "imaging"}, To: rename.Name{Tenant: "optics"}},
	}
	optics := strings.NewReplacer("imaging", "optics", "renamed_from: vision, ", "", "renamed_from: train, ", "").Replace(imagingLarge)
	for name, c := range map[string]struct {
		was, is string
		earlier uint64
		want    string
	}{
		"over two renames":      {tenants(optics), tenants(visionTrain), 1, "optics/→vision/@4 optics/large→vision/train@4"},
		"over one":              {tenants(optics), tenants(imagingLarge), 2, "optics/→imaging/@4"},
		"to the same":           {tenants(optics), tenants(optics), 3, ""},
		"it has ended since":    {tenants("{name: other}"), tenants(visionTrain), 1, ""},
		"the name is another's": {tenants(optics, "{name: vision}"), tenants(visionTrain), 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := said(Back(decoded(t, c.was), decoded(t, c.is), c.earlier, 4, recorded)); got != c.want {
				t.Errorf("it is %q", got)
			}
		})
	}
}
