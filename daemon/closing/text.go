package closing

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/gpushare/internal/store"
)

// Text is why a lease does not start, for the users who wait for it. It names no lease and no process, which may be of other tenants.
func Text(c *store.Closure) string {
	switch Kind(c.Kind) {
	case Maintenance:
		return MaintenanceText(c)
	case Held:
		return "it is held"
	case Unhealthy:
		return "it is unhealthy: " + c.Reason
	case Cordoned:
		return "it is cordoned"
	case MPSDown:
		return "its MPS is down" // The reason may name processes of other tenants.
	case Drained:
		return "its MPS is drained"
	case HeldBack:
		return fmt.Sprintf("its MPS takes no lease of %s after %d fatal faults", c.Tenant, c.Faults)
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

// MaintenanceText says who closed the node to new leases, since when and why; empty if it takes leases.
func MaintenanceText(c *store.Closure) string {
	if c == nil {
		return ""
	}
	out := fmt.Sprintf("the node is in maintenance: %s closed it to new leases at %s", c.By, c.Since.Local().Format(time.DateTime))
	if c.Reason != "" {
		out += " (" + c.Reason + ")"
	}
	return out
}

// Why is the same for administrators, with what opens the place. name is how commands name the GPU.
func Why(c *store.Closure, name string) string {
	switch Kind(c.Kind) {
	case Held, MPSDown:
		return c.Reason
	case Unhealthy:
		return fmt.Sprintf("it takes no new lease: %s; see 'gpushare gpu show %s'", healthOf(c).Reason(), name)
	case Cordoned:
		by := c.By + " closed it to new leases"
		if c.Reason != "" {
			by += " (" + c.Reason + ")"
		}
		return fmt.Sprintf("%s; 'gpushare gpu uncordon %s' ends that", by, name)
	case Drained:
		return fmt.Sprintf("%s drained its MPS; 'gpushare mps resume %s' ends that", c.By, name)
	case HeldBack:
		return fmt.Sprintf("%s; 'gpushare mps resume %s' ends that", Text(c), name)
	}
	return Text(c)
}
