package plugin

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
)

// orphanInterval is how often the leases are compared with the claims of the API server.
const orphanInterval = 10 * time.Minute

// releaseOrphans releases the leases whose claims are not there any more: of a kubelet whose state was removed, or of a claim that was
// deleted by force, no Unprepare comes.
func (f *Follower) releaseOrphans(ctx context.Context) {
	if f.Claims == nil {
		return
	}
	var suspects []string
	for {
		if sleep(ctx, orphanInterval, nil); ctx.Err() != nil {
			return
		}
		suspects = f.orphans(ctx, suspects)
	}
}

// orphans releases the leases that were without a claim the last time, and are now. It returns the keys of those that are for the first
// time.
func (f *Follower) orphans(ctx context.Context, suspects []string) (next []string) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	leases, err := f.Claims.Node.Leases(ctx)
	if err != nil {
		return suspects // The publisher says so.
	}
	for i := range leases {
		l := &leases[i]
		namespace, name, uid, ok := claims.ClaimOf(l)
		if !ok || l.Engine.EmptySince == nil || slices.ContainsFunc(l.Engine.Cgroups, f.Cgroups.Exists) || !f.withoutClaim(ctx, l) {
			continue
		}
		if !slices.Contains(suspects, l.Engine.Key) {
			next = append(next, l.Engine.Key)
			continue
		}
		f.Log.Warn("a lease has no claim any more: it is released", "claim", namespace+"/"+name, "uid", uid, "lease", l.ID)
		if err := f.Claims.Unprepare(ctx, uid, namespace+"/"+name); err != nil {
			next = append(next, l.Engine.Key)
		}
	}
	return next
}

// withoutClaim reports whether the API server has no claim of a lease. An answer that is not of the API itself says nothing, as that of a
// server without this version of it.
func (f *Follower) withoutClaim(ctx context.Context, l *api.Lease) bool {
	namespace, name, uid, _ := claims.ClaimOf(l)
	c, err := f.Claim(ctx, namespace, name)
	if err != nil {
		return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	}
	return c.UID != uid
}
