package daemon

import (
	"net/http"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/cordon"
	"github.com/gpushare/gpushare/daemon/history"
	"github.com/gpushare/gpushare/daemon/mpscontrol"
	"github.com/gpushare/gpushare/daemon/server"
)

// routes is the API. A handler restricts further what a member sees of other tenants.
func (d *Daemon) routes() []server.Route {
	mps := &mpscontrol.Control{
		Reporter: d.Reporter, StateDir: d.settings.StateDir, State: d.state, Observer: d.observer, Attribution: d.attribution, Table: d.table, Changes: d.changes, Refresh: d.converger.Refresh,
	}
	revisions := &history.History{State: d.state}
	cordons := &cordon.Cordons{Reporter: d.Reporter, StateDir: d.settings.StateDir, State: d.state, Observer: d.observer, Table: d.table, Refresh: d.converger.Refresh}
	return []server.Route{
		{Method: http.MethodGet, Pattern: "/v1", Access: server.Anyone, What: "read the versions", Bound: server.Reads, Handle: d.viewer.GetInfo},
		{Method: http.MethodGet, Pattern: "/v1/status", Access: server.Reader, What: "read the status", Bound: server.Reads, Handle: d.viewer.GetStatus},
		{Method: http.MethodGet, Pattern: "/metrics", Access: server.Reader, What: "read the metrics", Bound: server.Reads, Handle: d.metrics.Get},
		{Method: http.MethodGet, Pattern: "/v1/spec", Access: server.AdminOrObserver, What: "read the spec", Bound: server.Reads, Handle: d.changes.GetSpec},
		{Method: http.MethodPut, Pattern: "/v1/spec", Access: server.Admin, Audit: "apply", What: "change the spec", Bound: server.Changes, Handle: d.changes.PutSpec, Query: server.Query{"check": server.Flag, "diff": server.Flag, "force": server.Flag, "allow-reset": server.Flag, "file": server.Text}, Body: server.Document{}},
		{Method: http.MethodGet, Pattern: "/v1/history", Access: server.AdminOrObserver, What: "read the history", Bound: server.Lists, Handle: revisions.GetHistory},
		{Method: http.MethodGet, Pattern: "/v1/history/{generation}", Access: server.AdminOrObserver, What: "read the history", Bound: server.Reads, Handle: revisions.GetRevision},
		{Method: http.MethodPost, Pattern: "/v1/unmanage", Access: server.Admin, Audit: "unmanage", What: "unmanage the node", Bound: server.Changes, Handle: d.changes.PostUnmanage, Query: server.Query{"all": server.Flag, "check": server.Flag, "force": server.Flag}},
		{Method: http.MethodGet, Pattern: "/v1/plan", Access: server.AdminOrObserver, What: "read the plan", Bound: server.ReadsBack, Handle: d.viewer.GetPlan},
		{Method: http.MethodGet, Pattern: "/v1/mig", Access: server.AdminOrObserver, What: "list MIG profiles and instances", Bound: server.ReadsBack, Handle: d.viewer.GetMIG},
		{Method: http.MethodPost, Pattern: "/v1/mig/import", Access: server.Admin, Audit: "mig import", What: "import MIG instances", Bound: server.Changes, Handle: d.changes.PostImport, Query: server.Query{"check": server.Flag}, Body: api.InstancesRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/mig/remove", Access: server.Admin, Audit: "mig remove", What: "remove MIG instances", Bound: server.Changes, Handle: d.changes.PostRemove, Query: server.Query{"check": server.Flag}, Body: api.InstancesRequest{}},
		{Method: http.MethodGet, Pattern: "/v1/operations", Access: server.AdminOrObserver, What: "list operations", Bound: server.Reads, Handle: d.changes.GetOperations},
		{Method: http.MethodGet, Pattern: "/v1/operations/{id}", Access: server.AdminOrObserver, What: "read operations", Bound: server.Awaits, Handle: d.changes.GetOperation, Query: server.Query{"wait": server.Text, "after": server.Text}},
		{Method: http.MethodPost, Pattern: "/v1/gpus/{id}/retry", Access: server.Admin, Audit: "retry", AuditGPU: true, What: "try a GPU again", Bound: server.Changes, Handle: d.changes.RetryGPU, Query: server.Query{"force": server.Flag, "allow-reset": server.Flag}},
		{Method: http.MethodPost, Pattern: "/v1/gpus/{id}/cordon", Access: server.Admin, Audit: "cordon", AuditGPU: true, What: "cordon a GPU", Bound: server.Changes, Handle: cordons.PostCordon, Body: api.CordonRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/gpus/{id}/uncordon", Access: server.Admin, Audit: "uncordon", AuditGPU: true, What: "uncordon a GPU", Bound: server.Changes, Handle: cordons.PostUncordon},
		{Method: http.MethodGet, Pattern: "/v1/maintenance", Access: server.AdminOrObserver, What: "read the maintenance", Bound: server.ReadsBack, Handle: d.maintenance.GetMaintenance},
		{Method: http.MethodPost, Pattern: "/v1/maintenance", Access: server.Admin, Audit: "maintenance", What: "begin a maintenance", Bound: server.Changes, Handle: d.maintenance.PostOn, Body: api.MaintenanceRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/maintenance/off", Access: server.Admin, Audit: "maintenance", What: "end a maintenance", Bound: server.Changes, Handle: d.maintenance.PostOff},
		{Method: http.MethodGet, Pattern: "/v1/mps/{id}", Access: server.AdminOrObserver, What: "read the MPS of a GPU", Bound: server.ReadsBack, Handle: d.viewer.GetMPS},
		{Method: http.MethodGet, Pattern: "/v1/mps/{id}/log", Access: server.Admin, What: "read the log of MPS", Bound: server.ReadsBack, Handle: d.viewer.GetMPSLog, Query: server.Query{"lines": server.Text}},
		{Method: http.MethodPost, Pattern: "/v1/mps/{id}/restart", Access: server.Admin, Audit: "mps restart", AuditGPU: true, What: "restart the MPS of a GPU", Bound: server.Changes, Handle: mps.PostRestart, Query: server.Query{"check": server.Flag, "force": server.Flag}},
		{Method: http.MethodPost, Pattern: "/v1/mps/{id}/drain", Access: server.Admin, Audit: "mps drain", AuditGPU: true, What: "drain the MPS of a GPU", Bound: server.Changes, Handle: mps.PostDrain},
		{Method: http.MethodPost, Pattern: "/v1/mps/{id}/resume", Access: server.Admin, Audit: "mps resume", AuditGPU: true, What: "resume the MPS of a GPU", Bound: server.Changes, Handle: mps.PostResume},
		{Method: http.MethodPost, Pattern: "/v1/conditions/{id}/ack", Access: server.Admin, Audit: "condition ack", What: "acknowledge a condition", Bound: server.Changes, Handle: d.acknowledged.PostAck, Body: api.AcknowledgeRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/conditions/{id}/unack", Access: server.Admin, Audit: "condition unack", What: "end the acknowledgement of a condition", Bound: server.Changes, Handle: d.acknowledged.PostUnack},
		{Method: http.MethodPost, Pattern: "/v1/tenants/{name}/freeze", Access: server.Admin, Audit: "freeze", What: "freeze a tenant", Bound: server.Changes, Handle: d.enforcer.PostTenantFreeze},
		{Method: http.MethodPost, Pattern: "/v1/tenants/{name}/thaw", Access: server.Admin, Audit: "thaw", What: "thaw a tenant", Bound: server.Changes, Handle: d.enforcer.PostTenantThaw},
		{Method: http.MethodPost, Pattern: "/v1/leases", Access: server.Member, Audit: "start", What: "run on a GPU", Bound: server.Starts, Handle: d.leases.PostLease, Body: api.LeaseRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/leases/attach", Access: server.Member, Audit: "attach", What: "attach a process to a GPU", Bound: server.Starts, Handle: d.leases.PostAttach, Body: api.AttachRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/containers", Access: server.Admin, Audit: "container", What: "reserve a place for a container", Bound: server.Starts, Handle: d.adopter.PostContainer, Body: api.ContainerRequest{}},
		{Method: http.MethodPost, Pattern: "/v1/leases/{id}/release", Access: server.MemberOrOwner, Audit: "release", What: "release a lease", Bound: server.Stops, Handle: d.leases.ReleaseLease},
		{Method: http.MethodGet, Pattern: "/v1/leases", Access: server.ReaderOrOwner, What: "list leases", Bound: server.Lists, Handle: d.viewer.GetLeases, Query: server.Query{"all": server.Flag, "since": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/leases/{id}/logs", Access: server.MemberOrOwner, What: "read the output of a lease", Bound: server.Outputs, Handle: d.leases.GetLogs, Query: server.Query{"lines": server.Text, "follow": server.Flag}},
		{Method: http.MethodDelete, Pattern: "/v1/leases/{id}", Access: server.MemberOrOwner, Audit: "stop", What: "stop a lease", Bound: server.Stops, Handle: d.leases.DeleteLease},
		{Method: http.MethodGet, Pattern: "/v1/explain", Access: server.ReaderOrOwner, What: "explain a lease or a tenant", Bound: server.ReadsBack, Handle: d.viewer.GetExplain, Query: server.Query{"of": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/env", Access: server.MemberOrOwner, What: "read the environment of a lease", Bound: server.Reads, Handle: d.leases.GetEnv, Query: server.Query{"podman": server.Flag}},
		{Method: http.MethodGet, Pattern: "/v1/events", Access: server.Reader, What: "follow events", Bound: server.Events, Handle: d.viewer.GetEvents},
		{Method: http.MethodGet, Pattern: "/v1/events/kept", Access: server.Reader, What: "list events", Bound: server.Lists, Handle: d.viewer.GetKeptEvents, Query: server.Query{"since": server.Text, "until": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/doctor", Access: server.AdminOrObserver, What: "run the checks", Bound: server.ReadsBack, Handle: d.viewer.GetDoctor},
		{Method: http.MethodGet, Pattern: "/v1/usage", Access: server.Reader, What: "read what leases used", Bound: server.Lists, Handle: d.account.GetUsage, Query: server.Query{"since": server.Text, "until": server.Text, "by": server.Text, "step": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/audit", Access: server.Admin, What: "read the audit", Bound: server.Lists, Handle: d.viewer.GetAudit, Query: server.Query{"since": server.Text, "until": server.Text, "user": server.Text, "tenant": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/audit/verify", Access: server.Admin, What: "verify the audit", Bound: server.Lists, Handle: d.viewer.GetAuditVerification, Query: server.Query{"anchor": server.Text}},
		{Method: http.MethodGet, Pattern: "/v1/counters", Access: server.AdminOrObserver, What: "read the counters", Bound: server.Reads, Handle: d.viewer.GetCounters},
		{Method: http.MethodPost, Pattern: "/v1/reload", Access: server.Admin, Audit: "reload", What: "reload the settings", Bound: server.Changes, Handle: d.postReload},
	}
}
