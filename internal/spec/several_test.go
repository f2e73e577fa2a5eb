package spec_test

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/spec"
)

// Several instances in one lease are refused with what to write instead, and that is accepted.
func TestSeveralInstancesInAGrant(t *testing.T) {
	grant := func(text string) []byte {
		return []byte("version: v1\ntenants: [{name: red, grants: [{name: cut, " + text + "}]}]\n")
	}
	for text, write := range map[string]string{
		"mig: [1g.5gb, 1g.5gb]":   "mig: 1g.5gb, max_leases: 2",
		`mig: "1g.5gb,1g.5gb"`:    "mig: 1g.5gb, max_leases: 2",
		"mig: 1g.5gb 1g.5gb":      "mig: 1g.5gb, max_leases: 2",
		"mig: 3x1g.10gb+me":       "mig: 1g.10gb+me, max_leases: 3",
		`mig: "1g.5gb*3"`:         "mig: 1g.5gb, max_leases: 3",
		"mig: [1g.5gb]":           "mig: 1g.5gb",
		"mig: {slices: 3}":        "slices: 3",
		"mig: [{slices: 3}]":      "",
		"mig: [3g.20gb, 1g.5gb]":  "",
		"mig: [3g.20gb, [1g.5gb]": "",
	} {
		_, err := spec.Decode("f", grant(text))
		if err == nil {
			t.Errorf("%s is accepted", text)
			continue
		}
		if write == "" {
			continue
		}
		if !strings.Contains(err.Error(), write) {
			t.Errorf("%s: %v", text, err)
		}
		if _, err := spec.Decode("f", grant(write)); err != nil {
			t.Errorf("%s, as the refusal says: %v", write, err)
		}
	}
	if _, err := spec.Decode("f", grant("mig: [3g.20gb, 1g.5gb]")); !strings.Contains(err.Error(), "Write a grant for each") {
		t.Error(err)
	}
}
