package daemon

import (
	"context"
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/adminaction"
	"github.com/gpushare/gpushare/daemon/cordon"
	mpscontrol "github.com/gpushare/gpushare/daemon/mps/control"
	"github.com/gpushare/gpushare/daemon/server"
)

const (
	get    = http.MethodGet
	put    = http.MethodPut
	post   = http.MethodPost
	remove = http.MethodDelete
)

// row is a route as a line of the table, in the order of the fields of server.Route.
type row server.Route

type more = server.More

var applyQuery = server.Query{
	"check":       server.Flag,
	"diff":        server.Flag,
	"force":       server.Flag,
	"allow-reset": server.Flag,
	"reset":       server.Text,
	"drained":     server.Text,
	"file":        server.Text,
}

// routes is the API. A handler restricts further what a member sees of other tenants.
func (d *Daemon) routes() []server.Route {
	var out []server.Route
	for _, r := range slices.Concat(d.specRoutes(), d.gpuRoutes(), d.leaseRoutes(), d.reportRoutes()) {
		out = append(out, server.Route(r))
	}
	return out
}

// specRoutes are those of the spec in force, and what happens to it.
func (d *Daemon) specRoutes() []row {
	return []row{
		{get, "/v1/spec", "read the spec", server.AdminOrObserver, server.Reads, d.specs.GetSpec, more{}},
		{put, "/v1/spec", "change the spec", server.Admin, server.Changes, d.changes.PutSpec, more{
			Audit: server.Operation("apply"),
			Query: applyQuery,
			Body:  server.Document{},
		}},
		{get, "/v1/history", "read the history", server.AdminOrObserver, server.Lists, d.specs.GetHistory, more{}},
		{get, "/v1/history/{generation}", "read the history", server.AdminOrObserver, server.Reads, d.specs.GetRevision, more{}},
		{post, "/v1/unmanage", "unmanage the node", server.Admin, server.Changes, d.unmanaging.PostUnmanage, more{
			Audit: server.Operation("unmanage"),
			Query: server.Query{"all": server.Flag, "check": server.Flag, "force": server.Flag, "drained": server.Text},
		}},
		{get, "/v1/plan", "read the plan", server.AdminOrObserver, server.ReadsBack, d.viewer.GetPlan, more{}},
		{get, "/v1/operations", "list operations", server.AdminOrObserver, server.Reads, d.changes.GetOperations, more{}},
		{get, "/v1/operations/{id}", "read operations", server.AdminOrObserver, server.Awaits, d.changes.GetOperation, more{
			Query: server.Query{"wait": server.Text, "after": server.Text},
		}},
		{post, "/v1/reload", "reload the settings", server.Admin, server.Changes, d.postReload, more{Audit: server.GoesOn("reload")}},
	}
}

// gpuRoutes are those of GPUs, their MIG instances and their MPS.
func (d *Daemon) gpuRoutes() []row {
	actions := &adminaction.Actions{
		Reporter: d.Reporter,
		State:    d.state,
		Table:    d.table,
		Refresh:  func(ctx context.Context) { d.converger.Refresh(ctx, d.observer.Last()) },
	}
	mps := &mpscontrol.Control{Actions: actions, Observer: d.observer, Attribution: d.attribution, Changes: d.changes}
	cordons := &cordon.Cordons{Actions: actions, Observer: d.observer}
	return []row{
		{get, "/v1/mig", "list MIG profiles and instances", server.AdminOrObserver, server.ReadsBack, d.viewer.GetMIG, more{}},
		{post, "/v1/mig/import", "import MIG instances", server.Admin, server.Changes, d.instances.PostImport, more{
			Audit: server.Operation("mig import"),
			Query: server.Query{"check": server.Flag},
			Body:  api.InstancesRequest{},
		}},
		{post, "/v1/mig/remove", "remove MIG instances", server.Admin, server.Changes, d.instances.PostRemove, more{
			Audit: server.Operation("mig remove"),
			Query: server.Query{"check": server.Flag},
			Body:  api.InstancesRequest{},
		}},
		{post, "/v1/gpus/{id}/retry", "try a GPU again", server.Admin, server.Changes, d.changes.RetryGPU, more{
			Audit:    server.Operation("retry"),
			AuditGPU: true,
			Query:    server.Query{"force": server.Flag, "allow-reset": server.Flag, "reset": server.Text, "drained": server.Text},
		}},
		{post, "/v1/gpus/{id}/cordon", "cordon a GPU", server.Admin, server.Changes, cordons.PostCordon, more{
			Audit:    server.GoesOn("cordon"),
			AuditGPU: true,
			Body:     api.CordonRequest{},
		}},
		{post, "/v1/gpus/{id}/uncordon", "uncordon a GPU", server.Admin, server.Changes, cordons.PostUncordon, more{
			Audit:    server.GoesOn("uncordon"),
			AuditGPU: true,
		}},
		{get, "/v1/maintenance", "read the maintenance", server.AdminOrObserver, server.ReadsBack, d.maintenance.GetMaintenance, more{}},
		{post, "/v1/maintenance", "begin a maintenance", server.Admin, server.Changes, d.maintenance.PostOn, more{
			Audit: server.GoesOn("maintenance"),
			Body:  api.MaintenanceRequest{},
		}},
		{post, "/v1/maintenance/off", "end a maintenance", server.Admin, server.Changes, d.maintenance.PostOff, more{
			Audit: server.GoesOn("maintenance"),
		}},
		{get, "/v1/mps/{id}", "read the MPS of a GPU", server.AdminOrObserver, server.ReadsBack, d.viewer.GetMPS, more{}},
		{get, "/v1/mps/{id}/log", "read the log of MPS", server.Admin, server.ReadsBack, d.viewer.GetMPSLog, more{
			Query: server.Query{"lines": server.Text},
		}},
		{post, "/v1/mps/{id}/restart", "restart the MPS of a GPU", server.Admin, server.Changes, mps.PostRestart, more{
			Audit:    server.Operation("mps restart"),
			AuditGPU: true,
			Query:    server.Query{"check": server.Flag, "force": server.Flag},
		}},
		{post, "/v1/mps/{id}/drain", "drain the MPS of a GPU", server.Admin, server.Changes, mps.PostDrain, more{
			Audit:    server.GoesOn("mps drain"),
			AuditGPU: true,
		}},
		{post, "/v1/mps/{id}/resume", "resume the MPS of a GPU", server.Admin, server.Changes, mps.PostResume, more{
			Audit:    server.GoesOn("mps resume"),
			AuditGPU: true,
		}},
	}
}

// leaseRoutes are those of leases and the tenants that have them.
func (d *Daemon) leaseRoutes() []row {
	return []row{
		{post, "/v1/tenants/{name}/freeze", "freeze a tenant", server.Admin, server.Changes, d.enforcer.PostTenantFreeze, more{
			Audit: server.GoesOn("freeze"),
		}},
		{post, "/v1/tenants/{name}/thaw", "thaw a tenant", server.Admin, server.Changes, d.enforcer.PostTenantThaw, more{
			Audit: server.GoesOn("thaw"),
		}},
		{post, "/v1/leases", "run on a GPU", server.Member, server.Starts, d.leases.PostLease, more{
			Audit: server.GoesOn("start"),
			Body:  api.LeaseRequest{},
		}},
		{post, "/v1/leases/attach", "attach a process to a GPU", server.Member, server.Starts, d.leases.PostAttach, more{
			Audit: server.GoesOn("attach"),
			Body:  api.AttachRequest{},
		}},
		{post, "/v1/engine/leases", "attach a job of an engine to a GPU", server.Engine, server.Starts, d.engines.PostLease, more{
			Audit: server.GoesOn("attach"),
			Body:  api.EngineRequest{},
		}},
		{get, "/v1/engine/leases/{key}", "read the lease of a job", server.Engine, server.Reads, d.engines.GetLease, more{}},
		{get, "/v1/engine/leases/{key}/cdi", "read the devices of a job", server.Engine, server.Reads, d.engines.GetDevice, more{}},
		{remove, "/v1/engine/leases/{key}", "release the lease of a job", server.Engine, server.Stops, d.engines.DeleteLease, more{
			Audit: server.GoesOn("release"),
		}},
		{post, "/v1/containers", "reserve a place for a container", server.Admin, server.Starts, d.adopter.PostContainer, more{
			Audit: server.GoesOn("container"),
			Body:  api.ContainerRequest{},
		}},
		{post, "/v1/leases/{id}/release", "release a lease", server.MemberOrOwner, server.Stops, d.leases.ReleaseLease, more{
			Audit: server.GoesOn("release"),
		}},
		{get, "/v1/leases", "list leases", server.ReaderOrOwner, server.Lists, d.viewer.GetLeases, more{
			Query: server.Query{"all": server.Flag, "since": server.Text},
		}},
		{get, "/v1/leases/{id}/logs", "read the output of a lease", server.MemberOrOwner, server.Outputs, d.leases.GetLogs, more{
			Query: server.Query{"lines": server.Text, "follow": server.Flag},
		}},
		{get, "/v1/idle", "list who holds GPU memory", server.ReaderOrOwner, server.Reads, d.viewer.GetIdle, more{}},
		{remove, "/v1/leases/{id}", "stop a lease", server.MemberOrOwner, server.Stops, d.leases.DeleteLease, more{
			Audit: server.GoesOn("stop"),
		}},
		{get, "/v1/explain", "explain a lease or a tenant", server.ReaderOrOwner, server.ReadsBack, d.viewer.GetExplain, more{
			Query: server.Query{"of": server.Text},
		}},
		{get, "/v1/env", "read the environment of a lease", server.MemberOrOwner, server.Reads, d.leases.GetEnv, more{
			Query: server.Query{"podman": server.Flag},
		}},
	}
}

// reportRoutes are those of what the node is and was, for people and tools.
func (d *Daemon) reportRoutes() []row {
	return []row{
		{get, "/v1", "read the versions", server.Anyone, server.Reads, d.viewer.GetInfo, more{}},
		{get, "/v1/status", "read the status", server.Reader, server.Reads, d.viewer.GetStatus, more{
			Query: server.Query{"sensors": server.Flag},
		}},
		{get, "/metrics", "read the metrics", server.Reader, server.Reads, d.metrics.Get, more{}},
		{post, "/v1/conditions/{id}/ack", "acknowledge a condition", server.Admin, server.Changes, d.acknowledged.PostAck, more{
			Audit: server.GoesOn("condition ack"),
			Body:  api.AcknowledgeRequest{},
		}},
		{post, "/v1/conditions/{id}/unack", "end an acknowledgement", server.Admin, server.Changes, d.acknowledged.PostUnack, more{
			Audit: server.GoesOn("condition unack"),
		}},
		{get, "/v1/events", "follow events", server.Reader, server.Events, d.viewer.GetEvents, more{}},
		{get, "/v1/events/kept", "list events", server.Reader, server.Lists, d.viewer.GetKeptEvents, more{
			Query: server.Query{"since": server.Text, "until": server.Text},
		}},
		{get, "/v1/doctor", "run the checks", server.AdminOrObserver, server.ReadsBack, d.viewer.GetDoctor, more{}},
		{get, "/v1/usage", "read what leases used", server.Reader, server.Lists, d.account.GetUsage, more{
			Query: server.Query{"since": server.Text, "until": server.Text, "by": server.Text, "step": server.Text},
		}},
		{get, "/v1/audit", "read the audit", server.Admin, server.Lists, d.viewer.GetAudit, more{
			Query: server.Query{"since": server.Text, "until": server.Text, "user": server.Text, "tenant": server.Text},
		}},
		{get, "/v1/audit/verify", "verify the audit", server.Admin, server.Lists, d.viewer.GetAuditVerification, more{
			Query: server.Query{"anchor": server.Text},
		}},
		{get, "/v1/counters", "read the counters", server.AdminOrObserver, server.Reads, d.viewer.GetCounters, more{}},
	}
}
