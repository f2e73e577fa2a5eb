package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnvironmentOver(t *testing.T) {
	base := []string{"A=1", "B=2", "A=3", "C=x=y", "ODD"}
	e := Environment{Environment: map[string]string{"A": "9", "Z": "", "B2": "b"}, Unset: []string{"C", "NOT"}}
	if diff := cmp.Diff([]string{"B=2", "ODD", "A=9", "B2=b", "Z="}, e.Over(base)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"A=1", "B=2", "A=3", "C=x=y", "ODD"}, base); diff != "" {
		t.Errorf("the base was changed: %s", diff)
	}
}
