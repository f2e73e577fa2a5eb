package daemon

import "net/http"

// routes is the API. A handler narrows further what a tenant's member sees of other tenants.
func (d *Daemon) routes() []route {
	return []route{
		{http.MethodGet, "/v1", anyone, "look at the versions", d.viewer.getInfo, true},
		{http.MethodGet, "/v1/status", reader, "look at the status", d.viewer.getStatus, true},
		{http.MethodGet, "/v1/spec", seer, "look at the spec", d.changes.getSpec, true},
		{http.MethodPut, "/v1/spec", admin, "change the spec", d.changes.putSpec, false},
		{http.MethodPost, "/v1/release", admin, "give the node back", d.changes.postRelease, false},
		{http.MethodGet, "/v1/plan", seer, "look at the plan", d.viewer.getPlan, true},
		{http.MethodGet, "/v1/mig", seer, "look at what the GPUs can be partitioned into", d.viewer.getMIG, true},
		{http.MethodPost, "/v1/mig/adopt", admin, "adopt MIG instances", d.changes.postAdopt, false},
		{http.MethodPost, "/v1/mig/remove", admin, "remove MIG instances", d.changes.postRemove, false},
		{http.MethodGet, "/v1/operations/{id}", seer, "look at operations", d.changes.getOperation, false},
		{http.MethodPost, "/v1/gpus/{id}/retry", admin, "try a GPU again", d.changes.retryGPU, false},
		{http.MethodPost, "/v1/leases", member, "run on a GPU", d.leases.postLease, false},
		{http.MethodPost, "/v1/leases/attach", member, "attach a process to a GPU", d.leases.postAttach, false},
		{http.MethodPost, "/v1/leases/{id}/release", member, "release a lease", d.leases.releaseLease, false},
		{http.MethodGet, "/v1/leases", reader, "look at leases", d.viewer.getLeases, true},
		{http.MethodGet, "/v1/leases/{id}/logs", member, "read the output of a lease", d.leases.getLogs, false},
		{http.MethodDelete, "/v1/leases/{id}", member, "stop a lease", d.leases.deleteLease, false},
		{http.MethodGet, "/v1/explain", reader, "have anything explained", d.viewer.getExplain, true},
		{http.MethodGet, "/v1/env", member, "look at a lease's environment", d.leases.getEnv, true},
		{http.MethodGet, "/v1/events", reader, "follow events", d.viewer.getEvents, false},
		{http.MethodGet, "/v1/doctor", seer, "run the checks", d.viewer.getDoctor, true},
		{http.MethodGet, "/v1/counters", seer, "look at the counters", d.viewer.getCounters, true},
		{http.MethodPost, "/v1/reload", admin, "reload the settings", d.postReload, false},
	}
}
