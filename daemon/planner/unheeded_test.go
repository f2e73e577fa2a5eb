package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
)

// What is read and not done is said; what is done is not warned of.
func TestUnheeded(t *testing.T) {
	for _, c := range []struct {
		name, text string
		says       []string
	}{
		{"all is done", "version: v1\nnode: {enforce: on, guard: off}\ngpus:\n  - select: {all: true}\n    mode: timeslice\n", nil},
		{"a guard", "version: v1\nnode: {guard: logins}\n", nil},
		{"dynamic", "version: v1\ngpus:\n  - select: {all: true}\n    mode: mig\n    mig: {dynamic: true, keep: 1m}\n", nil},
		{"once for many", "version: v1\ntenants:\n  - {name: a, preempt: stop}\n  - {name: b, per_login: {memory: 1GiB}, preempt: stop}\n", []string{"preempt"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := spec.Decode("test", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			s.Normalize()
			got := Unheeded(s)
			same := slices.EqualFunc(got, c.says, func(g, w string) bool { return strings.HasPrefix(g, w+" is not carried out") })
			if !same {
				t.Errorf("got %q, want those that begin with %q", got, c.says)
			}
		})
	}
	if got := Unheeded(&api.Spec{}); len(got) != 0 {
		t.Errorf("an empty spec is warned of: %q", got)
	}
}
