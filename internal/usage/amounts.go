package usage

import (
	"math"
	"math/bits"
	"time"
)

// Amounts are what was used, in whole numbers: a sum of them is exact in any order. Times are in milliseconds.
type Amounts struct {
	Held           int64 `json:"h,omitempty"`  // the time for which leases had the GPU or their part of it
	Occupancy      int64 `json:"o,omitempty"`  // the time for which they were charged, while OccupancyKnown
	OccupancyKnown int64 `json:"ok,omitempty"` // the time for which the occupancy is known
	Busy           int64 `json:"b,omitempty"`  // the time in which their kernels ran, while BusyKnown
	BusyKnown      int64 `json:"bk,omitempty"` // the time for which the busy time was measured
	BusyVariance   int64 `json:"bv,omitempty"` // of Busy, in square milliseconds
	Memory         int64 `json:"m,omitempty"`  // GPU memory in use × time, in GiB·ms, while MemoryKnown
	MemoryKnown    int64 `json:"mk,omitempty"` // the time for which the GPU memory was measured
	Peak           int64 `json:"p,omitempty"`  // the most GPU memory that one lease had on one GPU, in bytes: the highest, not a sum
	Idle           int64 `json:"hi,omitempty"` // the time for which the GPU was held and seen idle, while IdleKnown
	IdleKnown      int64 `json:"hk,omitempty"` // the held time of which it is known whether it was idle
	GPUTime        int64 `json:"gt,omitempty"` // the held time × the part of the GPU that was kept from others, while GPUTimeKnown
	GPUTimeKnown   int64 `json:"gk,omitempty"` // the held time for which that part is known

	Starts      int64            `json:"s,omitempty"`  // leases that started
	Wait        int64            `json:"w,omitempty"`  // from their requests to their starts, together
	LongestWait int64            `json:"lw,omitempty"` // the longest of these: the highest, not a sum
	Ends        int64            `json:"e,omitempty"`  // leases that ended
	Exits       map[string]int64 `json:"x,omitempty"`  // of these, by exit code; an unknown one is under "unknown"
}

// UnknownExit is the exit code of a lease whose command's result is not known.
const UnknownExit = "unknown"

// Add adds what another one has.
func (a *Amounts) Add(b *Amounts) {
	a.Held += b.Held
	a.Occupancy += b.Occupancy
	a.OccupancyKnown += b.OccupancyKnown
	a.Busy += b.Busy
	a.BusyKnown += b.BusyKnown
	a.BusyVariance += b.BusyVariance
	a.Memory += b.Memory
	a.MemoryKnown += b.MemoryKnown
	a.Idle += b.Idle
	a.IdleKnown += b.IdleKnown
	a.GPUTime += b.GPUTime
	a.GPUTimeKnown += b.GPUTimeKnown
	a.Peak = max(a.Peak, b.Peak)
	a.Starts += b.Starts
	a.Wait += b.Wait
	a.LongestWait = max(a.LongestWait, b.LongestWait)
	a.Ends += b.Ends
	for code, n := range b.Exits {
		if a.Exits == nil {
			a.Exits = map[string]int64{}
		}
		a.Exits[code] += n
	}
}

// fine is a sum with the parts below one unit, which a rounded sum would lose each second.
type fine struct {
	occupancy, occupancyKnown, busy, busyKnown, memoryKnown, held time.Duration
	idle, idleKnown, gpuTime, gpuTimeKnown                        time.Duration

	variance float64 // square seconds
	memory   int64   // GiB·ms
	rest     uint64  // of memory, in byte·ns below one GiB·ms
	peak     uint64  // bytes
}

const gibMillisecond = (1 << 30) * uint64(time.Millisecond)

// addMemory adds bytes × time without an overflow: 2^64 bytes for 2^63 ns are 2^127.
func (f *fine) addMemory(b uint64, d time.Duration) {
	high, low := bits.Mul64(b, uint64(max(0, d)))
	low, carry := bits.Add64(low, f.rest, 0)
	high += carry
	if high >= gibMillisecond {
		return // more than 2^64 GiB·ms: no GPU has this
	}
	whole, rest := bits.Div64(high, low, gibMillisecond)
	if whole > math.MaxInt64/2 {
		return
	}
	f.memory, f.rest = f.memory+int64(whole), rest
}

// wholeVariance returns the variance in square milliseconds, to the nearest whole number.
func (f *fine) wholeVariance() float64 { return math.Round(min(max(0, f.variance)*1e6, 1e18)) }

// amounts rounds times down.
func (f *fine) amounts() Amounts {
	return Amounts{
		Held: f.held.Milliseconds(), Occupancy: f.occupancy.Milliseconds(), OccupancyKnown: f.occupancyKnown.Milliseconds(),
		Busy: f.busy.Milliseconds(), BusyKnown: f.busyKnown.Milliseconds(), BusyVariance: int64(f.wholeVariance()),
		Memory: f.memory, MemoryKnown: f.memoryKnown.Milliseconds(), Peak: int64(min(f.peak, math.MaxInt64)),
		Idle: f.idle.Milliseconds(), IdleKnown: f.idleKnown.Milliseconds(),
		GPUTime: f.gpuTime.Milliseconds(), GPUTimeKnown: f.gpuTimeKnown.Milliseconds(),
	}
}

// carry returns what amounts rounded off: it is counted in the next sum.
func (f *fine) carry() fine {
	const ms = time.Millisecond
	return fine{
		held:           f.held % ms,
		occupancy:      f.occupancy % ms,
		occupancyKnown: f.occupancyKnown % ms,
		busy:           f.busy % ms,
		busyKnown:      f.busyKnown % ms,
		memoryKnown:    f.memoryKnown % ms,
		idle:           f.idle % ms,
		idleKnown:      f.idleKnown % ms,
		gpuTime:        f.gpuTime % ms,
		gpuTimeKnown:   f.gpuTimeKnown % ms,
		rest:           f.rest,
		variance:       f.variance - f.wholeVariance()/1e6,
	}
}
