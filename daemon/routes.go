package daemon

import (
	"net/http"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
)

// routes is the API. A handler restricts further what a member sees of other tenants.
func (d *Daemon) routes() []server.Route {
	return []server.Route{
		{Method: http.MethodGet, Pattern: "/v1", Access: server.Anyone, What: "read the versions", Handle: d.viewer.GetInfo, Brief: true},
		{Method: http.MethodGet, Pattern: "/v1/status", Access: server.Reader, What: "read the status", Handle: d.viewer.GetStatus, Brief: true},
		{Method: http.MethodGet, Pattern: "/v1/spec", Access: server.AdminOrObserver, What: "read the spec", Handle: d.changes.GetSpec, Brief: true},
		{Method: http.MethodPut, Pattern: "/v1/spec", Access: server.Admin, What: "change the spec", Handle: d.changes.PutSpec, Query: server.Query{"check": server.Flag, "diff": server.Flag, "force": server.Flag, "allow-reset": server.Flag, "file": server.Text}, Body: server.Document{}},
		{Method: http.MethodPost, Pattern: "/v1/unmanage", Access: server.Admin, What: "unmanage the node", Handle: d.changes.PostUnmanage, Query: server.Query{"all": server.Flag, "check": server.Flag, "force": server.Flag}},
		{Method: http.MethodGet, Pattern: "/v1/plan", Access: server.AdminOrObserver, What: "read the plan", Handle: d.viewer.GetPlan, Brief: true},
		{Method: http.MethodGet, Pattern: "/v1/mig", Access: server.AdminOrObserver, What: "list MIG profiles and instances", Handle: d.viewer.GetMIG, Brief: true},
		{Method: http.MethodPost, Pattern: "/v1/mig/import", Access: server.Admin, What: "import MIG instances", Handle: d.changes.PostImport, Query: server.Query{"check": server.Flag}, Body: api.InstancesRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/mig/remove", Access: server.Admin, What: "remove MIG instances", Handle: d.changes.PostRemove, Query: server.Query{"check": server.Flag}, Body: api.InstancesRequest{}},
		{Method: http.MethodGet, Pattern: "/v1/operations/{id}", Access: server.AdminOrObserver, What: "read operations", Handle: d.changes.GetOperation, Query: server.Query{"wait": server.Text, "after": server.Text}},
		{Method: http.MethodPost, Pattern: "/v1/gpus/{id}/retry", Access: server.Admin, What: "try a GPU again", Handle: d.changes.RetryGPU},
		{Method: http.MethodPost, Pattern: "/v1/tenants/{name}/freeze", Access: server.Admin, What: "freeze a tenant", Handle: d.enforcer.PostTenantFreeze},
		{Method: http.MethodPost, Pattern: "/v1/tenants/{name}/thaw", Access: server.Admin, What: "thaw a tenant", Handle: d.enforcer.PostTenantThaw},
		{Method: http.MethodPost, Pattern: "/v1/leases", Access: server.Member, What: "run on a GPU", Handle: d.leases.PostLease, Body: api.LeaseRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/leases/attach", Access: server.Member, What: "attach a process to a GPU", Handle: d.leases.PostAttach, Body: api.AttachRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/leases/{id}/release", Access: server.Member, What: "release a lease", Handle: d.leases.ReleaseLease},
		{Method: http.MethodGet, Pattern: "/v1/leases", Access: server.Reader, What: "list leases", Handle: d.viewer.GetLeases, Brief: true, Query: server.Query{"all": server.Flag, "since": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/leases/{id}/logs", Access: server.Member, What: "read the output of a lease", Handle: d.leases.GetLogs, Query: server.Query{"lines": server.Text, "follow": server.Flag}},
		{Method: http.MethodDelete, Pattern: "/v1/leases/{id}", Access: server.Member, What: "stop a lease", Handle: d.leases.DeleteLease},
		{Method: http.MethodGet, Pattern: "/v1/explain", Access: server.Reader, What: "explain a lease or a tenant", Handle: d.viewer.GetExplain, Brief: true, Query: server.Query{"of": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/env", Access: server.Member, What: "read the environment of a lease", Handle: d.leases.GetEnv, Brief: true},
		{Method: http.MethodGet, Pattern: "/v1/events", Access: server.Reader, What: "follow events", Handle: d.viewer.GetEvents},
		{Method: http.MethodGet, Pattern: "/v1/doctor", Access: server.AdminOrObserver, What: "run the checks", Handle: d.viewer.GetDoctor, Brief: true},
		{Method: http.MethodGet, Pattern: "/v1/usage", Access: server.Reader, What: "read what leases used", Handle: d.account.GetUsage, Brief: true, Query: server.Query{"since": server.Text, "until": server.Text, "by": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/counters", Access: server.AdminOrObserver, What: "read the counters", Handle: d.viewer.GetCounters, Brief: true},
		{Method: http.MethodPost, Pattern: "/v1/reload", Access: server.Admin, What: "reload the settings", Handle: d.postReload},
	}
}
