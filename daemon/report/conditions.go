package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
)

// conditions is the list of conditions, each with the time since when it is so.
type conditions struct {
	now  func() time.Time
	gpus *gpuNames

	mu      locks.Mutex[locks.Leaf] // guards all, covered and together
	all     map[conditionKey]api.Condition
	covered map[conditionKey]bool // another one says it: they are not listed
	// together are by kind those that one condition is about.
	together map[string]map[string]time.Duration
}

// newConditions returns an empty list.
func newConditions(now func() time.Time, gpus *gpuNames) *conditions {
	return &conditions{now: now, gpus: gpus, all: map[conditionKey]api.Condition{}}
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
	c.putLocked(about, cond)
}

func (c *conditions) putLocked(about string, cond api.Condition) {
	key := conditionKey{cond.Kind, about}
	cond.ID, cond.Since = key.id(), c.now()
	cond.Message, cond.Hint = c.gpus.write(cond.Message), c.gpus.write(cond.Hint)
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
	defer c.mu.Unlock()
	c.replaceLocked(kind, now)
}

func (c *conditions) replaceLocked(kind string, now map[string]api.Condition) {
	for key := range c.all {
		if _, still := now[key.about]; key.kind == kind && !still {
			delete(c.all, key)
		}
	}
	for about, cond := range now {
		cond.Kind = kind
		c.putLocked(about, cond)
	}
}

// ReplaceCovering is Replace for conditions of which some say what another kind says about the same: whenever that one begins, it is not
// listed as long as these last. covered is the other kind, and abouts are what both are about.
func (c *conditions) ReplaceCovering(kind string, now map[string]api.Condition, covered string, abouts []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replaceLocked(kind, now)
	maps.DeleteFunc(c.covered, func(key conditionKey, _ bool) bool { return key.kind == covered })
	if c.covered == nil {
		c.covered = map[conditionKey]bool{}
	}
	for _, about := range abouts {
		c.covered[conditionKey{covered, about}] = true
	}
}

// List returns the conditions in a stable order.
func (c *conditions) List() []api.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]api.Condition, 0, len(c.all))
	for key, cond := range c.all {
		if !c.covered[key] {
			out = append(out, cond)
		}
	}
	slices.SortFunc(out, func(a, b api.Condition) int {
		return cmp.Or(
			cmp.Compare(a.Kind, b.Kind), c.gpus.compare(a.GPU, b.GPU), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Message, b.Message),
		)
	})
	return out
}

// LostFiles is the kind of the conditions of files of the daemon that another program removed.
const LostFiles = "files"
