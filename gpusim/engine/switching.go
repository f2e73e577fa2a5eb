package engine

import (
	"fmt"
	"slices"
	"time"
)

// Switching says how groups share the engine. With the zero value they share it equally at any time, as if slices were infinitely
// short. It must not change after the first context.
type Switching struct {
	// Slice is how long a group runs, if others have work too. Hardware has 1 to 2 ms by default.
	Slice time.Duration
	// Whole: a kernel is not interrupted, so that a slice lasts until the kernel ends that runs at its end. Boards before Pascal,
	// and kernels that cannot be interrupted, are like that.
	Whole bool
}

// longestSlice is the longest Slice.
const longestSlice = time.Second

// Validate returns what is out of range.
func (t Switching) Validate() error {
	switch {
	case t.Slice < 0 || t.Slice > longestSlice:
		return fmt.Errorf("slice must be 0 to %v, not %v", longestSlice, t.Slice)
	case t.Whole && t.Slice == 0:
		return fmt.Errorf("whole kernels need a slice")
	}
	return nil
}

// rotation is the groups with work in the order in which they run.
type rotation struct {
	Switching
	groups  []*group
	current int           // index of the one that runs
	ends    time.Duration // of its slice
	last    bool          // its slice is over when the kernel that runs has ended, at ends
}

// add adds a group that has work now, as the last one: those that wait run before it, also if groups come and go all the time.
func (r *rotation) add(g *group, now time.Duration) {
	if len(r.groups) == 0 {
		r.groups = append(r.groups, g)
		r.begin(0, now)
		return
	}
	r.groups = slices.Insert(r.groups, r.current, g)
	r.current++
}

// remove removes a group that has no work any more. If it ran the next group runs now.
func (r *rotation) remove(g *group, now time.Duration) {
	i := slices.Index(r.groups, g)
	r.groups = slices.Delete(r.groups, i, i+1)
	switch {
	case i < r.current:
		r.current--
	case i == r.current:
		r.begin(i, now)
	}
}

func (r *rotation) begin(i int, now time.Duration) {
	r.current, r.ends, r.last = 0, now+r.Slice, false
	if len(r.groups) != 0 {
		r.current = i % len(r.groups)
	}
}

// SwitchBy lets the groups run one after the other.
func (e *Engine) SwitchBy(t Switching) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rotation.Switching = t
}

// switchLocked gives the engine to the next group when a slice is over.
func (e *Engine) switchLocked() {
	r := &e.rotation
	if r.Slice == 0 || len(r.groups) < 2 || e.now < r.ends {
		return
	}
	if r.Whole && !r.last {
		rest := 0.0
		for _, c := range r.groups[r.current].active {
			rest = max(rest, c.queue.started()/c.rate)
		}
		if rest > 0 {
			r.last, r.ends = true, e.after(rest)
			return
		}
	}
	r.begin(r.current+1, e.now)
	e.shareLocked()
}

// sliceEndLocked returns when the slice may end; never when no other group waits.
func (e *Engine) sliceEndLocked() time.Duration {
	if r := &e.rotation; r.Slice != 0 && len(r.groups) > 1 {
		return max(r.ends, e.now+1)
	}
	return never
}
