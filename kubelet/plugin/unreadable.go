package plugin

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
)

// evictAfter is for how long a GPU is unreadable until its pods are moved away: they may go on after a call that failed, but hardly on a
// GPU that no call can read.
const evictAfter = 30 * time.Second

// failing are the GPUs that are unreadable for so long, by UUID. since has when each became so, and is updated. It is the time of the
// status, so that nothing counts while gpushared does not answer.
func failing(since map[string]time.Time, s *api.Status) map[string]bool {
	out := map[string]bool{}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.State != "unreadable" {
			delete(since, g.UUID)
			continue
		}
		if _, ok := since[g.UUID]; !ok {
			since[g.UUID] = s.At
		}
		if s.At.Sub(since[g.UUID]) >= evictAfter {
			out[g.UUID] = true
		}
	}
	for id := range since {
		if !slices.ContainsFunc(s.GPUs, func(g api.GPUStatus) bool { return g.UUID == id }) {
			delete(since, id)
		}
	}
	return out
}
