package lease

import "fmt"

// usedBy records that a user has a lease at this place.
func (o *occupancy) usedBy(uid int, p *Place) {
	for _, id := range p.GPUs {
		o.shared(p, id).user = &uid
	}
}

// otherUser returns why a device that serves the processes of one user at a time serves no other user now; empty if the requester may
// have it. The processes of another user would not fail there: they would wait, without a message.
func (t *gpuUsage) otherUser(d *divisible, who requester) string {
	if d.oneUser() == "" || t.user == nil || who.uid == nil || *t.user == *who.uid {
		return ""
	}
	return fmt.Sprintf("%v is used by another user, and %s", d, d.oneUser())
}
