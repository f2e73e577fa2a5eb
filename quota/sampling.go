package quota

import "time"

const (
	// movedBytes is how far the used memory of a GPU must move until its processes are listed at once.
	movedBytes = 64 << 20
	// startRate is the fill rate that is assumed at least, in bytes a second. A reading costs about 12 µs, so that it is
	// cheaper to assume it than to be surprised by a program that allocated slowly until now.
	startRate = 20 << 30
	// rateHalfLife is the time in which a learned fill rate falls to half.
	rateHalfLife = time.Minute

	shortestInterval = 20 * time.Millisecond
	nearInterval     = 100 * time.Millisecond // between two readings of the total while little headroom is left, whatever they cost
	closeInterval    = 250 * time.Millisecond // between two lists while a grant is close to its limit
	changedInterval  = time.Second            // between two lists while the total moves, but little
	idleInterval     = 3 * time.Second        // between two lists while nothing moves
	costlyInterval   = 5 * time.Second        // between two lists at most while memory grows or a process came or went, whatever they cost
	longestInterval  = 30 * time.Second       // between two lists at most
	// recentGrowth is how long after the last growth readings and lists may exceed the budget while little headroom is left.
	recentGrowth = 10 * time.Second

	// DriverBudget is the driver's time for readings that one GPU may cost in one second. Readings of all processes hold
	// a lock of the driver for 4.5 ms in the worst published measurement, one of the memory for 12 µs.
	DriverBudget = 2 * time.Millisecond
	// idleLoad is the driver's time a second up to which processes are listed while nothing moves.
	idleLoad = DriverBudget * 3 / 4
	// DriverCredit is how much may be spent at once after a quiet time.
	DriverCredit = 20 * time.Millisecond
	// DriverDebt is how much may be owed while memory runs out.
	DriverDebt = 40 * time.Millisecond
)

// Sampling decides when the memory of one GPU is read and when its processes are listed. Reading the total is cheap and
// frequent, listing the processes is expensive and happens when the total has moved. The zero value works; it is not safe
// for concurrent use. Times are of one clock that never goes back.
type Sampling struct {
	rate   float64 // bytes a second, learned; 0: startRate
	used   uint64  // last reading
	readAt time.Duration
	known  bool // there was a reading
	grew   bool // the total has grown, last at grewAt
	grewAt time.Duration

	listedUsed uint64 // the total when the processes were listed
	listedAt   time.Duration
	listed     bool

	credit   time.Duration // driver's time that may be spent; below zero: owed
	paidAt   time.Duration
	spent    time.Duration // of the driver, so far
	spending bool          // spent is known

	window budgetWindow
}

// Headroom is how far a GPU's grants and its reserve are from their limits.
type Headroom struct {
	Bytes uint64 // that may be allocated until a lease may have to be frozen or stopped
	Known bool   // false: no amount leads to that
	Close bool   // a grant uses at least 90 % of its limit
	Over  bool   // a grant is above its limit, and its lease is frozen, in a break or in its grace
}

// Read takes a reading of the GPU's used memory. It reports whether the processes are to be listed now: the total moved, a
// grant is close to its limit, or the last list is old.
func (s *Sampling) Read(now time.Duration, used uint64, headroom Headroom, longest time.Duration) (list bool) {
	s.learn(now, used)
	age, moved, credit := now-s.listedAt, s.Moved(), s.available(now)
	if !s.listed || age >= longestInterval {
		return true
	}
	if age >= costlyInterval && (moved >= movedBytes || s.pressing(now, headroom, longest)) {
		return true
	}
	switch {
	case moved >= movedBytes && headroom.Known && headroom.Bytes == 0: // Something may be decided by this list.
		return s.owed(now, s.urgent(now, headroom, longest)) <= 0
	case moved >= movedBytes, headroom.Close && age >= closeInterval, moved > 0 && age >= changedInterval:
		// Half of the credit is kept for that.
		return credit >= DriverCredit/2 || age >= idleInterval && credit >= 0
	case age >= idleInterval: // Without a reason: the whole credit, so that the list of a process that starts next is not late.
		load, _ := s.DriverLoad(now)
		return credit >= DriverCredit && load <= idleLoad
	}
	return false
}

// urgent reports whether memory runs out: it grew within the last second, and the headroom could be filled before the next
// reading at the longest interval. Only then driver's time is owed.
func (s *Sampling) urgent(now time.Duration, headroom Headroom, longest time.Duration) bool {
	return s.near(headroom, longest) && s.grew && now < s.grewAt+time.Second
}

// pressing reports whether a reading may not be late, whatever it costs: little headroom is left, and memory grew lately or an
// offender may grow in its next break.
func (s *Sampling) pressing(now time.Duration, headroom Headroom, longest time.Duration) bool {
	return s.near(headroom, longest) && (headroom.Over || s.grew && now < s.grewAt+recentGrowth)
}

func (s *Sampling) near(headroom Headroom, longest time.Duration) bool {
	return headroom.Known && float64(headroom.Bytes) < s.Rate()*longest.Seconds()
}

// learn keeps the largest fill rate of the recent past.
func (s *Sampling) learn(now time.Duration, used uint64) {
	elapsed := now - s.readAt
	if s.known && elapsed > 0 {
		s.rate *= 1 - min(1, elapsed.Seconds()/rateHalfLife.Seconds()/2)
		if used > s.used {
			s.grew, s.grewAt = true, now
			s.rate = max(s.rate, float64(used-s.used)/elapsed.Seconds())
		}
	}
	s.used, s.readAt, s.known = used, now, true
}

// Moved is by how many bytes the total differs from what it was when the processes were listed.
func (s *Sampling) Moved() uint64 {
	if s.used > s.listedUsed {
		return s.used - s.listedUsed
	}
	return s.listedUsed - s.used
}

// Grown is by how many bytes the total is above what it was when the processes were listed.
func (s *Sampling) Grown() uint64 {
	if s.used > s.listedUsed {
		return s.used - s.listedUsed
	}
	return 0
}

// Listed records that the processes were listed, with the GPU's used memory of the same reading.
func (s *Sampling) Listed(now time.Duration, used uint64) {
	s.learn(now, used)
	s.listedUsed, s.listedAt, s.listed = used, now, true
}

// Rate is the fill rate that is assumed, in bytes a second.
func (s *Sampling) Rate() float64 { return max(s.rate, startRate) }

// Next is the time until the next reading, at most longest unless the budget is exceeded.
func (s *Sampling) Next(now time.Duration, headroom Headroom, longest time.Duration) time.Duration {
	near, most := s.near(headroom, longest), longest
	next := longest
	if near {
		next = max(time.Duration(float64(headroom.Bytes)/s.Rate()*float64(time.Second)), shortestInterval)
	}
	if s.pressing(now, headroom, longest) {
		most = min(longest, nearInterval) // Else an offender in a break would grow without being noticed.
	}
	urgent := s.urgent(now, headroom, longest)
	if missing := DriverCredit/2 - s.available(now); !urgent && missing > 0 { // Half of the credit is kept for lists.
		next = max(next, min(paidIn(missing), most))
	}
	if owed := s.owed(now, urgent); owed > 0 { // As long as the budget takes to pay it.
		if !near {
			most = costlyInterval
		}
		next = max(next, min(paidIn(owed), most))
	}
	return next
}

// paidIn is the time in which the budget pays for a time of the driver.
func paidIn(d time.Duration) time.Duration {
	return time.Duration(float64(d) / float64(DriverBudget) * float64(time.Second))
}

// available is the driver's time that may be spent now; below zero: owed. Where it is not measured there is always enough.
func (s *Sampling) available(now time.Duration) time.Duration {
	if !s.spending {
		return DriverCredit
	}
	earned := time.Duration(float64(now-s.paidAt) / float64(time.Second) * float64(DriverBudget))
	return min(s.credit+earned, DriverCredit)
}

// owed is the driver's time that has to be paid before the next costly reading.
func (s *Sampling) owed(now time.Duration, urgent bool) time.Duration {
	if urgent {
		return -s.available(now) - DriverDebt
	}
	return -s.available(now)
}

// Spent takes the driver's time for readings of the GPU so far. When it is lower than before, the driver was loaded again
// and counts from zero.
func (s *Sampling) Spent(now, total time.Duration) {
	s.credit = s.available(now)
	if s.spending {
		used := total
		if total >= s.spent {
			used = total - s.spent
		}
		s.credit -= used
		s.window.add(now, used)
	}
	s.spent, s.paidAt, s.spending = total, now, true
}
