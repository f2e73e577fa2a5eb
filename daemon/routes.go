package daemon

import "net/http"

// route is one entry of the table: who may is visible here and nowhere else.
type route struct {
	method  string
	pattern string
	access  access
	what    string // "look at the spec": for the refusal
	handle  func(*Daemon, *call) error
	brief   bool // it waits for nothing, and takes its turn among the requests of its user
}

// routes is the API. A handler narrows further what a tenant's member sees of other tenants.
func routes() []route {
	return []route{
		{http.MethodGet, "/v1", anyone, "look at the versions", (*Daemon).getInfo, true},
		{http.MethodGet, "/v1/status", reader, "look at the status", (*Daemon).getStatus, true},
		{http.MethodGet, "/v1/spec", seer, "look at the spec", (*Daemon).getSpec, true},
		{http.MethodPut, "/v1/spec", admin, "change the spec", (*Daemon).putSpec, false},
		{http.MethodPost, "/v1/release", admin, "give the node back", (*Daemon).postRelease, false},
		{http.MethodGet, "/v1/plan", seer, "look at the plan", (*Daemon).getPlan, true},
		{http.MethodGet, "/v1/mig", seer, "look at what the GPUs can be partitioned into", (*Daemon).getMIG, true},
		{http.MethodPost, "/v1/mig/adopt", admin, "adopt MIG instances", (*Daemon).postAdopt, false},
		{http.MethodPost, "/v1/mig/remove", admin, "remove MIG instances", (*Daemon).postRemove, false},
		{http.MethodGet, "/v1/operations/{id}", seer, "look at operations", (*Daemon).getOperation, false},
		{http.MethodPost, "/v1/gpus/{id}/retry", admin, "try a GPU again", (*Daemon).retryGPU, false},
		{http.MethodPost, "/v1/leases", member, "run on a GPU", (*Daemon).postLease, false},
		{http.MethodPost, "/v1/leases/attach", member, "attach a process to a GPU", (*Daemon).postAttach, false},
		{http.MethodPost, "/v1/leases/{id}/release", member, "release a lease", (*Daemon).releaseLease, false},
		{http.MethodGet, "/v1/leases", reader, "look at leases", (*Daemon).getLeases, true},
		{http.MethodGet, "/v1/leases/{id}/logs", member, "read the output of a lease", (*Daemon).getLogs, false},
		{http.MethodDelete, "/v1/leases/{id}", member, "stop a lease", (*Daemon).deleteLease, false},
		{http.MethodGet, "/v1/explain", reader, "have anything explained", (*Daemon).getExplain, true},
		{http.MethodGet, "/v1/env", member, "look at a lease's environment", (*Daemon).getEnv, true},
		{http.MethodGet, "/v1/events", reader, "follow events", (*Daemon).getEvents, false},
		{http.MethodGet, "/v1/doctor", seer, "run the checks", (*Daemon).getDoctor, true},
		{http.MethodGet, "/v1/counters", seer, "look at the counters", (*Daemon).getCounters, true},
		{http.MethodPost, "/v1/reload", admin, "reload the settings", (*Daemon).postReload, false},
	}
}
