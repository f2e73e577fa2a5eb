package daemon

import "net/http"

// route is one entry of the table: who may is visible here and nowhere else.
type route struct {
	method  string
	pattern string
	access  access
	what    string // "look at the spec": for the refusal
	handle  func(*Daemon, *call) error
}

// routes is the API. A handler narrows further what a tenant's member sees of other tenants.
func routes() []route {
	return []route{
		{http.MethodGet, "/v1", anyone, "look at the versions", (*Daemon).getInfo},
		{http.MethodGet, "/v1/status", reader, "look at the status", (*Daemon).getStatus},
		{http.MethodGet, "/v1/spec", seer, "look at the spec", (*Daemon).getSpec},
		{http.MethodPut, "/v1/spec", admin, "change the spec", (*Daemon).putSpec},
		{http.MethodPost, "/v1/release", admin, "give the node back", (*Daemon).postRelease},
		{http.MethodGet, "/v1/plan", seer, "look at the plan", (*Daemon).getPlan},
		{http.MethodGet, "/v1/mig", seer, "look at what the GPUs can be partitioned into", (*Daemon).getMIG},
		{http.MethodGet, "/v1/operations/{id}", seer, "look at operations", (*Daemon).getOperation},
		{http.MethodPost, "/v1/gpus/{id}/retry", admin, "try a GPU again", (*Daemon).retryGPU},
		{http.MethodPost, "/v1/leases", member, "run on a GPU", (*Daemon).postLease},
		{http.MethodPost, "/v1/leases/attach", member, "attach a process to a GPU", (*Daemon).postAttach},
		{http.MethodPost, "/v1/leases/{id}/release", member, "release a lease", (*Daemon).releaseLease},
		{http.MethodGet, "/v1/leases", reader, "look at leases", (*Daemon).getLeases},
		{http.MethodGet, "/v1/leases/{id}/logs", member, "read the output of a lease", (*Daemon).getLogs},
		{http.MethodDelete, "/v1/leases/{id}", member, "stop a lease", (*Daemon).deleteLease},
		{http.MethodGet, "/v1/explain", reader, "have anything explained", (*Daemon).getExplain},
		{http.MethodGet, "/v1/env", member, "look at a lease's environment", (*Daemon).getEnv},
		{http.MethodGet, "/v1/events", reader, "follow events", (*Daemon).getEvents},
		{http.MethodGet, "/v1/doctor", seer, "run the checks", (*Daemon).getDoctor},
		{http.MethodGet, "/v1/counters", seer, "look at the counters", (*Daemon).getCounters},
		{http.MethodPost, "/v1/reload", admin, "reload the settings", (*Daemon).postReload},
	}
}
