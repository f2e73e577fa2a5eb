package report

import (
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
)

// Together adds one of several, as a GPU, to the one condition of a kind that says the same of all of them. text makes its message of
// all and the largest of their values; it runs with a lock held.
func (c *conditions) Together(kind, one string, value time.Duration, text func(all []string, most time.Duration) (message, hint string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.together == nil {
		c.together = map[string]map[string]time.Duration{}
	}
	if c.together[kind] == nil {
		c.together[kind] = map[string]time.Duration{}
	}
	c.together[kind][one] = value
	c.sayTogetherLocked(kind, text)
}

// NotTogether removes one of them, and the condition with the last.
func (c *conditions) NotTogether(kind, one string, text func(all []string, most time.Duration) (message, hint string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.together[kind], one)
	c.sayTogetherLocked(kind, text)
}

func (c *conditions) sayTogetherLocked(kind string, text func(all []string, most time.Duration) (message, hint string)) {
	all := slices.SortedFunc(maps.Keys(c.together[kind]), c.gpus.compare)
	if len(all) == 0 {
		delete(c.all, conditionKey{kind, ""})
		return
	}
	message, hint := text(all, slices.Max(slices.Collect(maps.Values(c.together[kind]))))
	c.putLocked("", api.Condition{Kind: kind, Message: message, Hint: hint})
}
