package daemon

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/sandbox"
)

// The checks say what the kernel does not enforce for the worker, and nothing of one that is confined.
func TestUnconfinedWorker(t *testing.T) {
	for _, c := range []struct {
		state sandbox.State
		want  []string
	}{
		{sandbox.State{NoNewPrivs: true, Filtered: true}, nil},
		{sandbox.State{NoNewPrivs: true}, []string{"pid 7", "filter its calls"}},
		{sandbox.State{}, []string{"new privileges", "filter its calls"}},
	} {
		found := unconfinedWorker(7, c.state)
		if (len(found) == 0) != (c.want == nil) {
			t.Errorf("%+v: %+v", c.state, found)
			continue
		}
		for _, want := range c.want {
			if found[0].Result != "warn" || !strings.Contains(found[0].Message, want) {
				t.Errorf("%+v: %+v lacks %q", c.state, found[0], want)
			}
		}
	}
}
