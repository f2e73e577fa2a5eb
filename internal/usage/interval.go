package usage

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Subject is what an amount is counted to: one lease on one GPU.
type Subject struct {
	Lease      string
	Generation uint64 // of the lease: ids are used again, generations are not
	Tenant     string
	Grant      string
	User       string
	GPU        gpu.UUID
}

// Interval is what one lease used of one GPU between two samples. What was not measured is nil, and is not zero: the account
// shows for how much of the time it has a measurement. Time and memory may be reported in intervals of their own, in any
// order.
type Interval struct {
	Subject
	// From and To are readings of time.Now, with their monotonic part. The account takes the length from the monotonic clock and
	// the date from the system clock of To.
	From, To time.Time

	// Occupancy is the time in which the lease was charged for the GPU; at least 0 and at most the length.
	Occupancy *time.Duration
	// Busy is the time in which kernels of the lease ran; at least 0 and at most the length. A lease without a process on a GPU
	// whose processes are known has 0.
	Busy *Busy
	// Memory is the GPU memory of the lease's processes.
	Memory *Memory
}

// Busy is a measured busy time.
type Busy struct {
	Time     time.Duration
	Variance float64 // of Time in seconds², at least 0
}

// Memory is the GPU memory that was in use, in bytes.
type Memory struct {
	Mean uint64 // over the interval
	Peak uint64 // the highest value seen
}

// Length returns the length of the interval; 0 if it ends before it begins.
func (i *Interval) Length() time.Duration { return max(0, i.To.Sub(i.From)) }
