package report

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

func TestConditions(t *testing.T) {
	now := time.Unix(1000, 0)
	c := conditions{now: func() time.Time { return now }, all: map[conditionKey]api.Condition{}}
	texts := func() []string {
		var out []string
		for _, cond := range c.List() {
			out = append(out, cond.Kind+": "+cond.Message+" since "+cond.Since.UTC().Format("04:05"))
		}
		return out
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, texts()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	expect("at first")
	c.Set("state", "close", "disk full", "free space")
	now = now.Add(time.Minute)
	c.Replace("gpu", map[string]api.Condition{"b": {GPU: "b", Message: "b is lost"}, "a": {GPU: "a", Message: "a is lost"}})
	expect("sorted, each with its time", "gpu: a is lost since 17:40", "gpu: b is lost since 17:40", "state: disk full since 16:40")
	now = now.Add(time.Minute)
	c.Set("state", "close", "disk fuller", "free space")
	c.Replace("gpu", map[string]api.Condition{"b": {GPU: "b", Message: "b is still lost"}, "c": {GPU: "c", Message: "c is lost"}})
	expect(
		"renewed keeps since when it is so", "gpu: b is still lost since 17:40", "gpu: c is lost since 18:40",
		"state: disk fuller since 16:40",
	)
	c.Clear("state", "close")
	c.Clear("state", "never there")
	c.Replace("gpu", nil)
	expect("at last")
}
