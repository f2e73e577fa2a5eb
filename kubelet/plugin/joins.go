package plugin

import (
	"context"
	"errors"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/pods"
)

const (
	// joinInterval is how often the cgroup of a pod is looked for that is not there yet.
	joinInterval = 500 * time.Millisecond
	// mostJoins is how many pods of a claim join in one pass. Then those of others are next: a claim with hundreds of pods takes seconds.
	mostJoins = 16
)

// joins lets the pods of all claims join their leases.
func (f *Follower) joins(ctx context.Context, now time.Time, leases []api.Lease, tries attempts) (wait time.Duration) {
	for i := range leases {
		l := &leases[i]
		namespace, name, _, ok := claims.ClaimOf(l)
		if !ok {
			continue
		}
		claim := f.once(namespace, name)
		for _, p := range f.Pods.Of(namespace, name) {
			wait = sooner(wait, f.join(ctx, now, l, &p, claim, tries))
		}
	}
	tries.forget()
	return wait
}

// joining is the claim of a lease in one pass.
type joining struct {
	read func(ctx context.Context) (*resourceapi.ResourceClaim, error)
	left int // how many pods may join yet
}

// once reads a claim when it is needed first, for all its pods: the client makes few requests a second, and pods of other claims wait.
func (f *Follower) once(namespace, name string) *joining {
	var c *resourceapi.ResourceClaim
	var err error
	read := false
	return &joining{left: mostJoins, read: func(ctx context.Context) (*resourceapi.ResourceClaim, error) {
		if !read {
			c, err = f.Claim(ctx, namespace, name)
			read = true
		}
		return c, err
	}}
}

// errNotReserved is of a pod that uses another claim of this name, or one that is not reserved for it yet.
var errNotReserved = errors.New("the claim is not reserved for it")

// join lets a pod join the lease of its claim, and returns after which time that has to be tried again; 0: after a change.
func (f *Follower) join(
	ctx context.Context,
	now time.Time,
	l *api.Lease,
	p *pods.Pod,
	claim *joining,
	tries attempts,
) (wait time.Duration) {
	namespace, name, uid, _ := claims.ClaimOf(l)
	if p.Over {
		return 0
	}
	try := tries.of("join " + l.Engine.Key + " " + string(p.UID))
	cgroup := f.Cgroups.Cgroup(p.UID)
	switch {
	case cgroup == "" && p.Deleted:
		return 0 // The kubelet starts nothing of it any more.
	case cgroup == "":
		return joinInterval
	case slices.Contains(l.Engine.Cgroups, cgroup):
		return 0
	case try.after(now) > 0:
		return try.after(now)
	case claim.left == 0:
		return time.Millisecond // at once, after those of the other claims
	}
	claim.left--
	c, err := claim.read(ctx)
	if err == nil && !claims.ReservedFor(c, uid, p.UID) {
		try.tried(now, errNotReserved)
		return try.after(now)
	}
	if err == nil {
		_, err = f.Leases.AttachEngine(ctx, api.EngineRequest{Key: l.Engine.Key, Keep: true, Cgroup: cgroup})
	}
	log := try.tried(now, err)
	switch {
	case err != nil && log:
		f.Log.Warn("a pod does not join the lease of its claim", "claim", name, "pod", p.Name, "lease", l.ID, "error", err)
		f.noticeNotJoined(p, namespace+"/"+name, now, err)
	case log:
		f.Log.Info("a pod joins the lease of its claim", "claim", name, "pod", p.Name, "lease", l.ID)
	}
	return try.after(now)
}
