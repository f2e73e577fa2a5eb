package closing

import (
	"strings"

	"github.com/gpushare/gpushare/internal/store"
)

// Text is why a lease does not start, for the users who wait for it. It names no lease, no process and no administrator.
func Text(c *store.Closure) string {
	switch Kind(c.Kind) {
	case Cordoned:
		return "it is cordoned"
	}
	return c.Reason
}

// Text has all reasons.
func (l Closures) Text() string {
	texts := make([]string, len(l))
	for i := range l {
		texts[i] = Text(&l[i])
	}
	return strings.Join(texts, ", and ")
}
