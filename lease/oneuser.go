package lease

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
)

// usedBy records that a user has a lease on these GPUs.
func (o *occupancy) usedBy(uid int, gpus []gpu.UUID) {
	for _, id := range gpus {
		o.at(id).user = &uid
	}
}

// otherUser returns why a GPU that serves the processes of one user at a time serves no other user now; empty if the requester may
// have it. The processes of another user would not fail there: they would wait, without a message.
func (t *gpuUsage) otherUser(d *GPUView, who requester) string {
	if d.OneUser == "" || t.user == nil || who.uid == nil || *t.user == *who.uid {
		return ""
	}
	return fmt.Sprintf("GPU %d is used by another user, and %s", d.Index, d.OneUser)
}
