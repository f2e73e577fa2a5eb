package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
)

// conditions is the list of conditions, each with the time since when it is so.
type conditions struct {
	now func() time.Time

	mu  locks.Mutex[locks.Leaf] // guards all
	all map[conditionKey]api.Condition
}

// newConditions returns an empty list.
func newConditions(now func() time.Time) *conditions {
	return &conditions{now: now, all: map[conditionKey]api.Condition{}}
}

type conditionKey struct{ kind, about string }

// id is a short name that is the same in every run of the daemon.
func (k conditionKey) id() string {
	sum := sha256.Sum256([]byte(k.kind + "\x00" + k.about))
	return k.kind + "-" + hex.EncodeToString(sum[:4])
}

// Set adds or renews a condition.
func (c *conditions) Set(kind, about, message, hint string) {
	c.put(about, api.Condition{Kind: kind, Message: message, Hint: hint})
}

// Put is Set for a condition of a GPU or a tenant.
func (c *conditions) Put(kind, about string, cond api.Condition) {
	cond.Kind = kind
	c.put(about, cond)
}

func (c *conditions) put(about string, cond api.Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := conditionKey{cond.Kind, about}
	cond.ID, cond.Since = key.id(), c.now()
	if old, ok := c.all[key]; ok {
		cond.Since = old.Since
	}
	c.all[key] = cond
}

// Clear removes a condition.
func (c *conditions) Clear(kind, about string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, conditionKey{kind, about})
}

// Replace replaces all conditions of a kind.
func (c *conditions) Replace(kind string, now map[string]api.Condition) {
	c.mu.Lock()
	for key := range c.all {
		if _, still := now[key.about]; key.kind == kind && !still {
			delete(c.all, key)
		}
	}
	c.mu.Unlock()
	for about, cond := range now {
		cond.Kind = kind
		c.put(about, cond)
	}
}

// List returns the conditions in a stable order.
func (c *conditions) List() []api.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]api.Condition, 0, len(c.all))
	for _, cond := range c.all {
		out = append(out, cond)
	}
	slices.SortFunc(out, func(a, b api.Condition) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Message, b.Message))
	})
	return out
}
