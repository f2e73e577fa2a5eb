package api

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// What an XID has to do with a lease.
const (
	XIDCaused   = "caused"   // a process of the lease caused it, or it was in the MIG instance that the lease has alone
	XIDPossible = "possible" // a process of this lease or of another one on the GPU caused it: the driver named none
	XIDOfGPU    = "gpu"      // it is trouble of the GPU, and concerns every lease on it
)

// LeaseXID are the reports of one XID that concern a lease.
type LeaseXID struct {
	XID      uint64    `json:"xid"`
	Meaning  string    `json:"meaning"`
	GPU      string    `json:"gpu"`      // its UUID
	Relation string    `json:"relation"` // caused | possible | gpu
	Count    int       `json:"count"`
	Last     time.Time `json:"last"`
}

// String is "XID 31 (a program used …)", with how often and what it has to do with the lease.
func (x *LeaseXID) String() string {
	out := fmt.Sprintf("XID %d (%s)", x.XID, x.Meaning)
	if x.Count > 1 {
		out += fmt.Sprintf(", %d times", x.Count)
	}
	if x.Relation == XIDPossible {
		out += ", of this lease or of another one on the GPU"
	}
	return out
}

// XIDNumbers are the numbers of the XIDs of a lease, the last one first, with how often each came: "31×3, 43?". One that may be of
// another lease has a question mark.
func (l *Lease) XIDNumbers() string {
	var out []string
	for i := range slices.Backward(l.XIDs) {
		x := &l.XIDs[i]
		s := fmt.Sprint(x.XID)
		if x.Count > 1 {
			s += fmt.Sprintf("×%d", x.Count)
		}
		if x.Relation == XIDPossible {
			s += "?"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

// LostGPU is the time in which a GPU of a lease was lost.
type LostGPU struct {
	GPU    string     `json:"gpu"` // its UUID
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until,omitempty"` // it answers again since then; absent: it is lost
	Reason string     `json:"reason"`
}

// GPULost returns the time in which a GPU of the lease is lost now; nil if all of them answer.
func (l *Lease) GPULost() *LostGPU {
	for i := range l.LostGPUs {
		if l.LostGPUs[i].Until == nil {
			return &l.LostGPUs[i]
		}
	}
	return nil
}
