package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// The counts that the documentation states.
func TestBounds(t *testing.T) {
	of := func(tenants, grants int) *api.Spec {
		s := &api.Spec{Version: "v1"}
		for i := range tenants {
			tenant := api.TenantSpec{Name: fmt.Sprintf("t%d", i)}
			for j := range grants {
				tenant.Grants = append(tenant.Grants, api.GrantSpec{Name: fmt.Sprintf("g%d", j), Exclusive: 1})
			}
			s.Tenants = append(s.Tenants, tenant)
		}
		return s
	}
	for name, c := range map[string]struct {
		spec *api.Spec
		want string
	}{
		"the most tenants":         {of(1000, 5), ""},
		"one more":                 {of(1001, 0), "tenants: has 1001 tenants: at most 1000 are read; remove some"},
		"ten thousand":             {of(10000, 0), "tenants: has 10000 tenants: at most 1000 are read; remove some"},
		"the most grants of one":   {of(25, 200), ""},
		"one more of one":          {of(1, 201), "tenants[0].grants: has 201 grants: at most 200 are read; remove some"},
		"one more of all together": {of(26, 193), "tenants: has 5018 grants in all: at most 5000 are read; remove some"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := append(c.spec.Validate(), c.spec.Bounds()...).Error(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// A finding is one line that a terminal shows, whatever is in it.
func TestLongFinding(t *testing.T) {
	f := api.FieldError{
		File:    strings.Repeat("é/", 2000),
		Line:    1,
		Column:  2,
		Path:    strings.Repeat("ü.", 2000),
		Message: strings.Repeat("ß", 2000),
	}
	if got := f.Error(); len(got) > 460 || !strings.HasPrefix(got, "é/é/") || !strings.HasSuffix(got, "ß…") ||
		!strings.Contains(got, "/:1:2: ü.") ||
		strings.ContainsRune(got, '\ufffd') {
		t.Errorf("it has %d bytes: %s", len(got), got)
	}
}
