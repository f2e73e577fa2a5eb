package enforce

import (
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// log writes a decision to the journal.
func (s *sampler) log(a quota.MemoryAction) {
	attributes := []any{"do", a.Kind, "gpu", s.id, "account", a.Account, "lease", a.Lease, "used", a.Used, "limit", a.Limit}
	if len(a.Candidates) > 0 {
		attributes = append(attributes, "candidates", a.CandidateList())
	}
	switch {
	case a.DryRun:
		s.en.Log.Info("GPU memory: not done, the node only observes", append(attributes, "would", a.String())...)
	case a.Retry:
		s.en.Log.Debug("GPU memory: again", attributes...)
	default:
		s.en.Log.Info("GPU memory", append(attributes, "message_id", report.MessageMemory)...)
	}
}

// announce publishes an action, and informs the users whom it concerns.
func (s *sampler) announce(a quota.MemoryAction, leases []lease.Lease) {
	tenant, _, _ := strings.Cut(a.Account, "/") // As accountOf.
	e := api.Event{Kind: "memory." + string(a.Kind), GPU: string(s.id), Tenant: tenant, Lease: a.Lease, Message: a.String()}
	for i := range leases {
		l := &leases[i]
		if accountOf(l) != a.Account {
			continue
		}
		if l.Own.Memory > 0 {
			e.Lease = l.ID // It has the account for itself.
		}
		if a.Notify && (a.Lease == "" || a.Lease == l.ID) {
			s.en.Table.Notice(l.ID, lease.Notice{Text: a.String()})
		}
	}
	s.en.Events.Publish(e)
}
