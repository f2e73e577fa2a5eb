package claims

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// ClaimOf is the claim of a lease of gpushared, as Prepare has named it; ok is false if it is of none.
func ClaimOf(l *api.Lease) (namespace, name string, uid types.UID, ok bool) {
	if l.Engine == nil || !l.Engine.Kept || len(l.Command) == 0 {
		return "", "", "", false
	}
	id, keyed := publish.ClaimOf(l.Engine.Key)
	namespace, name, named := strings.Cut(l.Command[0], "/")
	return namespace, name, types.UID(id), keyed && named
}

// ReservedFor reports whether a claim is the one of that uid, and has a pod.
func ReservedFor(c *resourceapi.ResourceClaim, claim, pod types.UID) bool {
	if c.UID != claim {
		return false
	}
	for id := range podsOf(c) {
		if id == pod {
			return true
		}
	}
	return false
}
