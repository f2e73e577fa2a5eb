package slurm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
)

// Terms are what the jobs of a site have leases of.
type Terms struct {
	Tenant string
	Grant  string // empty: the one that fits the place
}

// ErrNoGrant means that the site gives no leases of what a job has: its tenant has no grant of that kind there. Slurm alone keeps such
// jobs apart.
var ErrNoGrant = errors.New("no grant is of it")

// Request is the keyed lease of a job in its places. shards is how many it requests, of 1 GiB each; 0: it has the GPU without shards, and
// what the grant has. A lease is in one place, or has whole GPUs: what a job has more of is refused, so that no lease says less than it
// has.
func (j *Job) Request(places []Place, shards uint64, t Terms, s *api.Status) (api.EngineRequest, error) {
	q := api.EngineRequest{Key: j.Key(), Tenant: t.Tenant, Grant: t.Grant, User: fmt.Sprint(j.UID), Account: j.Account}
	if len(places) == 0 {
		return q, errors.New("it has no GPU")
	}
	first := &places[0]
	for i := range places {
		p := &places[i]
		if !p.Leased {
			return q, fmt.Errorf("GPU %d: gpushare only looks at it: %w", p.Index, ErrNoGrant)
		}
		if p.Shared != first.Shared || (p.Instance == "") != (first.Instance == "") {
			return q, errors.New(
				"it has GPUs that are shared, whole ones or instances together, and a lease is of one kind: submit two jobs",
			)
		}
		q.GPUs = append(q.GPUs, p.GPU)
	}
	many := len(places) > 1
	switch {
	case first.Shared && many:
		return q, fmt.Errorf("it has shards of %d GPUs, and a lease is on one of them: submit it with the shards of one GPU", len(places))
	case first.Shared:
		if shards > 0 {
			memory := api.Bytes(shards << 30)
			q.GPUMemory = &memory
		}
		if len(t.fitting(s, first.GPU, "timeslice", "mps")) == 0 {
			return q, fmt.Errorf("tenant %s has no grant that shares GPU %d", t.Tenant, first.Index)
		}
	case first.Instance != "" && many:
		return q, fmt.Errorf("it has %d instances, and a lease has one: submit a job for each", len(places))
	case first.Instance != "":
		q.Instance = first.Instance
		if len(t.fitting(s, first.GPU, "mig")) == 0 {
			return q, fmt.Errorf("an instance of GPU %d: %w", first.Index, ErrNoGrant)
		}
	default:
		if t.Grant == "" {
			q.Kind = "exclusive"
		}
		for i := range places {
			if len(t.fitting(s, places[i].GPU, "exclusive")) == 0 {
				return q, fmt.Errorf("GPU %d: %w", places[i].Index, ErrNoGrant)
			}
		}
	}
	if first.Shared || first.Instance == "" {
		return q, nil
	}
	q.GPUs = nil // The UUID of the instance says where it is.
	return q, nil
}

// fitting are the grants of one of these kinds on a GPU that jobs may have leases of.
func (t *Terms) fitting(s *api.Status, uuid string, kinds ...string) []string {
	var out []string
	for i := range s.Tenants {
		for k := range s.Tenants[i].Grants {
			g := &s.Tenants[i].Grants[k]
			if s.Tenants[i].Name == t.Tenant && (t.Grant == "" || g.Name == t.Grant) && slices.Contains(kinds, g.Kind) &&
				slices.Contains(g.GPUs, uuid) {
				out = append(out, g.Name)
			}
		}
	}
	return out
}
