package api

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// EngineSpec is who may use keyed leases: the engines that choose places on this node, as the Prolog of Slurm or a driver of
// Kubernetes.
type EngineSpec struct {
	Members Members `json:"members,omitzero"`
	// Freeze are the engines whose jobs may be frozen for the time shares of others: OwnerSlurm, OwnerKubernetes. Empty: none, and the
	// shares of their jobs are not enforced.
	Freeze []string `json:"freeze,omitempty"`
}

// Freezes reports whether the jobs of an engine may be frozen.
func (e *EngineSpec) Freezes(engine string) bool {
	return e != nil && slices.Contains(e.Freeze, engine)
}

// EngineRequest is the body of POST /v1/engine/leases. A second request with the same key is answered with the same lease. What it
// names must be what the first one named; a cgroup that the first one did not name is where the lease is bound.
type EngineRequest struct {
	// Key is the engine's name of the job, as in slurm:CLUSTER:JOB:RESTART. See EngineKeyProblem.
	Key    string `json:"key"`
	Tenant string `json:"tenant,omitempty"`
	Grant  string `json:"grant,omitempty"` // empty: selected automatically
	Kind   string `json:"kind,omitempty"`
	// User is who the lease is for, by name or uid; empty: the caller.
	User    string `json:"user,omitempty"`
	Account string `json:"account,omitempty"` // the engine's account, for the account of usage
	// GPUs are the places that the engine chose, each by its index or UUID: the lease has all of them.
	GPUs []string `json:"gpus,omitempty"`
	// Instance is the MIG instance that the engine chose: a MIG UUID, or the memory slice at which it begins, on the one GPU of GPUs.
	Instance  string   `json:"instance,omitempty"`
	GPUMemory *Bytes   `json:"gpu_memory,omitempty"` // of the grant's, for this lease alone
	Share     *Percent `json:"share,omitempty"`      // as GPUMemory
	// Cgroup has the processes of the lease, with all cgroups below it. It may come later. A lease that is kept has all cgroups that
	// requests with its key have named, MostCgroups at most.
	Cgroup string `json:"cgroup,omitempty"`
	// BindTimeout is for how long a lease without processes is kept; absent: DefaultBindTimeout. A lease with Keep has none.
	BindTimeout *Duration `json:"bind_timeout,omitempty"`
	// Keep: the lease ends when it is released or stopped, or after its max_time, and not with its last process or its cgroup, which may be
	// made again.
	Keep    bool      `json:"keep,omitempty"`
	Name    string    `json:"name,omitempty"` // in lists; empty: the key
	MaxTime *Duration `json:"max_time,omitempty"`
}

// The bounds of a keyed lease.
const (
	DefaultBindTimeout = Duration(5 * time.Minute)
	MostBindTimeout    = Duration(24 * time.Hour)
	// MostCgroups is how many cgroups a lease with Keep has at most: as many as a claim of Kubernetes may have pods. Those that are
	// removed count as long as there is place.
	MostCgroups = 256

	maxEngineKey     = 128
	maxEngineAccount = 64
)

// ClaimFilePrefix begins the names of the CDI files that an engine writes for its leases, with what follows up to .json. gpushared removes
// files of its own prefix that it does not know, and none of these.
const ClaimFilePrefix = "gpushare.dev-claim_"

// RoleHeader is the header of a request whose caller wants less than its roles: RoleEngine. An administrator may have it, who then may
// do what an engine may and no more.
const (
	RoleHeader = "Gpushare-Role"
	RoleEngine = "engine"
)

// LeaseEngine is what an engine said of a lease.
type LeaseEngine struct {
	Key     string `json:"key"`
	Account string `json:"account,omitempty"`
	// Bound: the lease has its processes. Until then it has its place, and ends at BindBy; one that is Kept waits without an end, also
	// after its last process.
	Bound  bool       `json:"bound"`
	BindBy *time.Time `json:"bind_by,omitempty"`
	Kept   bool       `json:"kept,omitempty"` // it ends when it is released, and not with its processes
	// EmptySince is since when a lease that is Kept waits for processes: since its start before the first one. Absent: it has some.
	EmptySince *time.Time `json:"empty_since,omitempty"`
	Cgroups    []string   `json:"cgroups,omitempty"` // of a lease that is Kept: those of the pods of a claim
	// EndedAt is when the processes of a lease that is Kept were ended last, for the Reason of the lease, which is kept.
	EndedAt *time.Time `json:"ended_at,omitempty"`
}

// EngineKeyProblem returns what is wrong with the key of a keyed lease; empty: nothing. The engine is its first word, so that two
// engines of a node never have the same key.
func EngineKeyProblem(key string) string {
	engine, rest, ok := strings.Cut(key, ":")
	switch {
	case key == "":
		return "it is missing"
	case len(key) > maxEngineKey:
		return "it is longer than 128 bytes"
	case !ok || engine == "" || rest == "":
		return "it is not ENGINE:NAME"
	case !isEngineText(key, ":._-@+="):
		return "it has other characters than letters, digits and :._-@+="
	}
	return ""
}

// EngineAccountProblem returns what is wrong with an account; empty: nothing.
func EngineAccountProblem(account string) string {
	switch {
	case len(account) > maxEngineAccount:
		return "it is longer than 64 bytes"
	case !isEngineText(account, ":._-@+=/"):
		return "it has other characters than letters, digits and :._-@+=/"
	}
	return ""
}

func isEngineText(s, also string) bool {
	for _, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && !strings.ContainsRune(also, r) {
			return false
		}
	}
	return true
}

// inTenants refuses a user who is an engine and a member of a tenant: an engine chooses for all tenants.
func (e *EngineSpec) inTenants(c *checker, tenants []TenantSpec) {
	if e == nil {
		return
	}
	for i := range tenants {
		for j, user := range e.Members.Users {
			if slices.Contains(tenants[i].Members.Users, user) {
				c.add(
					fmt.Sprintf("node.engine.members.users[%d]", j), "%s is a member of tenant %s: an engine is in no tenant", quote(user),
					tenants[i].Name,
				)
			}
		}
	}
}
