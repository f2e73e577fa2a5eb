package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Usage answers GET /v1/usage: what leases used, by row. Total is the sum of the rows, exactly; its peak and its longest wait
// are the highest of the rows, and its error is that of the sum.
type Usage struct {
	SchemaVersion int        `json:"schema_version"` // 1
	Since         time.Time  `json:"since"`          // begin of the first hour, or day of which only a sum is left
	Until         time.Time  `json:"until"`
	By            []string   `json:"by"` // of tenant, user, gpu and lease
	Rows          []UsageRow `json:"rows"`
	Total         UsageRow   `json:"total"`
	LostRecords   int64      `json:"lost_records"` // that could not be written or read
	Host          string     `json:"host,omitempty"`
	// Capacity is what the GPUs of the node, as it is now, could have been used in this time, from the first day of the account on.
	Capacity *UsageCapacity `json:"capacity,omitempty"`
	// Outside is what processes used that were in no lease, of those whom the caller may see. It is in no other row and not in Total.
	Outside *UsageOutside `json:"outside,omitempty"`

	// With step=1h: the length of a step, and all steps, the oldest first. Steps begin at multiples of their length in UTC: of the
	// first and the last, only what is in [since, until) is counted.
	StepSeconds int64       `json:"step_seconds,omitempty"`
	Steps       []UsageStep `json:"steps,omitempty"`
}

// UsageCapacity is a time of all GPUs.
type UsageCapacity struct {
	GPUs       int         `json:"gpus"`
	GPUSeconds Thousandths `json:"gpu_seconds"`
}

// UsageOutside is what was used outside of leases: by user and GPU, as far as By has these keys. A row has the time with such processes
// (held_seconds), their GPU memory, their busy time and for how long they were seen idle (held_idle_seconds); the other values are 0.
type UsageOutside struct {
	Rows  []UsageRow `json:"rows"`
	Total UsageRow   `json:"total"`
}

// MostUsageSteps is how many steps an answer has at most.
const MostUsageSteps = 1000

// UsageStep is what leases used in one step.
type UsageStep struct {
	Since time.Time      `json:"since"`
	Rows  []UsageStepRow `json:"rows"`
}

// UsageStepRow is what one group used in one step.
type UsageStepRow struct {
	UsageRow
	WaitingSeconds Thousandths `json:"waiting_seconds"` // requests waited in this step, together: of leases that have started since
}

// The keys by which usage can be grouped, in the order of rows.
const (
	ByTenant = "tenant"
	ByUser   = "user"
	ByGPU    = "gpu"
	ByLease  = "lease"
	// ByAccount and ByJob are the account and the key that an engine gave its leases.
	ByAccount = "account"
	ByJob     = "job"
)

// UsageRow is what one group used. A key is absent if the rows are not grouped by it, or if it is not known any more: after 35
// days leases are not.
type UsageRow struct {
	Tenant string `json:"tenant,omitempty"`
	User   string `json:"user,omitempty"`
	GPU    string `json:"gpu,omitempty"` // UUID
	Lease  string `json:"lease,omitempty"`
	// Account and Job are what an engine gave its leases; absent also of leases that no engine requested.
	Account string `json:"account,omitempty"`
	Job     string `json:"job,omitempty"`

	LeasesStarted int64 `json:"leases_started"` // of a lease on several GPUs, with the first
	LeasesEnded   int64 `json:"leases_ended"`

	HeldSeconds              Thousandths `json:"held_seconds"`               // leases had the GPU or their part of it
	OccupancySeconds         Thousandths `json:"occupancy_seconds"`          // they were charged for it
	OccupancyMeasuredSeconds Thousandths `json:"occupancy_measured_seconds"` // the occupancy is known for this time
	BusySeconds              Thousandths `json:"busy_seconds"`               // their kernels ran
	BusyStdErrorSeconds      Thousandths `json:"busy_std_error_seconds"`     // one standard error of it
	BusyMeasuredSeconds      Thousandths `json:"busy_measured_seconds"`      // the busy time is known for this time
	GPUMemoryGiBSeconds      Thousandths `json:"gpu_memory_gib_seconds"`     // GPU memory in use × time
	GPUMemoryMeasuredSeconds Thousandths `json:"gpu_memory_measured_seconds"`
	GPUMemoryPeak            uint64      `json:"gpu_memory_peak"` // bytes, the most that one lease had on one GPU

	// GPUSeconds is the held time × the part of the GPU that was kept from others: a lease of half a GPU uses one in two seconds. It is
	// known for GPUMeasuredSeconds of the held time: not for that of versions which did not record it.
	GPUSeconds         Thousandths `json:"gpu_seconds"`
	GPUMeasuredSeconds Thousandths `json:"gpu_measured_seconds"`
	// HeldIdleSeconds is the held time in which no kernel ran, in steps of 10 s, as far as HeldIdleMeasuredSeconds of it was measured.
	HeldIdleSeconds         Thousandths `json:"held_idle_seconds"`
	HeldIdleMeasuredSeconds Thousandths `json:"held_idle_measured_seconds"`
	GPUIndex                *int        `json:"gpu_index,omitempty"` // of GPU, as it is now; absent: the node does not have it now

	QueueWaitSeconds        Thousandths      `json:"queue_wait_seconds"` // of the leases that started, from request to start
	QueueWaitLongestSeconds Thousandths      `json:"queue_wait_longest_seconds"`
	ExitCodes               map[string]int64 `json:"exit_codes"` // of the leases that ended, how many by exit code or "unknown"
}

// Thousandths is a number with three decimals. Its text is exact, so that sums of printed numbers are.
type Thousandths int64

// String writes the number without zeros at the end.
func (n Thousandths) String() string {
	sign, u := "", uint64(n)
	if n < 0 {
		sign, u = "-", -u
	}
	s := fmt.Sprintf("%s%d.%03d", sign, u/1000, u%1000)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Fixed writes all three decimals.
func (n Thousandths) Fixed() string {
	s := n.String()
	whole, decimals, _ := strings.Cut(s, ".")
	return whole + "." + (decimals + "000")[:3]
}

// MarshalJSON writes a number.
func (n Thousandths) MarshalJSON() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalJSON reads a number with at most three decimals.
func (n *Thousandths) UnmarshalJSON(b []byte) error {
	whole, decimals, _ := strings.Cut(string(b), ".")
	v, err := strconv.ParseInt(whole+(decimals + "000")[:3], 10, 64)
	if err != nil || len(decimals) > 3 {
		return fmt.Errorf("%s is no number with at most three decimals", b)
	}
	*n = Thousandths(v)
	return nil
}
