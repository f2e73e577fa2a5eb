package server

import (
	"cmp"
	"net/http"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/request"
)

// Note is what the handler of a route knows of the action that is recorded in the audit.
type Note struct {
	Lease, Tenant, GPU string
	Text               string
	Command            string     // of a lease, with its arguments: for administrators
	Refused            *api.Error // a refusal that is in the answer, which began before
}

// audit records a request that changes something, and counts what is refused otherwise. A request that only checks is no action.
func (s *Server) audit(c *Call, r *Route, refused *api.Error) {
	n := &c.Note
	if refused == nil {
		refused = n.Refused
	}
	e := report.Entry{
		By: c.Caller.Name, UID: c.Caller.UID, PID: c.Caller.Process.PID, Role: c.Caller.Role(), What: r.Audit.Name,
		LoginUID: c.Caller.Login.UID, Session: c.Caller.Login.Session,
		Lease: n.Lease, Tenant: n.Tenant, GPU: n.GPU, Text: n.Text, Command: n.Command,
	}
	r.subject(c, &e)
	if refused != nil {
		e.Kind, e.Text = string(refused.Kind), refused.Message
	}
	_, checks := r.Query["check"]
	switch {
	case r.Audit.Name == "" && refused == nil, refused == nil && checks && c.Flag("check"):
	case r.Audit.Name == "" || refused != nil && refused.Kind == api.KindInvalid:
		e.What = r.What
		s.Count(e)
	default:
		s.Record(e)
	}
}

// subject takes what the request is about from its path. The text is that of the caller.
func (r *Route) subject(c *Call, e *report.Entry) {
	if e.Tenant == "" {
		e.Tenant = request.Short(c.R.PathValue("name"))
	}
	id := request.Short(cmp.Or(c.R.PathValue("id"), c.R.PathValue("key")))
	switch {
	case id == "":
	case r.AuditGPU:
		e.GPU = id
	case e.Lease == "":
		e.Lease = id
	}
}

// refuseOutside refuses a request that reaches no route, and counts it.
func (s *Server) refuseOutside(w http.ResponseWriter, q *http.Request, status int, e *api.Error) {
	writeStatus(w, status, e)
	if p, ok := peerFrom(q.Context()); ok {
		c := s.Identities.Caller(p)
		s.Count(report.Entry{By: c.Name, UID: c.UID, Role: c.Role(), What: "request", Kind: string(e.Kind), Text: request.Short(e.Message)})
	}
}
