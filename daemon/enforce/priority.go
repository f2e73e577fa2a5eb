package enforce

import (
	"github.com/gpushare/gpushare/quota"
)

// priorityOf is the priority of a grant, for shares of time, for stops because of memory, and for pauses because of heat.
func priorityOf(word string) quota.Priority {
	switch word {
	case "low":
		return quota.PriorityLow
	case "high":
		return quota.PriorityHigh
	}
	return quota.PriorityNormal
}
