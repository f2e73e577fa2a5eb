package quota

// phase is what the scheduler does with the GPU. It is all the state of a slice: which leases it is of is Scheduler.set.
type phase int

const (
	concurrent  phase = iota // no lease is frozen for a slice
	sliceOpens               // the other leases are frozen, then those of the set are thawed
	sliceRuns                // the leases of the set run, the others are frozen
	sliceCloses              // the leases of the set are frozen
	backlogRuns              // all are frozen, the queued work of the set still runs
	allCapped                // all are frozen, because all have reached their caps
	cleared                  // those that have slices are frozen, for leases with low latency
)

func (p phase) String() string {
	return [...]string{"concurrent", "slice opens", "slice runs", "slice closes", "backlog runs", "all capped", "cleared"}[p]
}

// phases are the transitions between phases. Every phase ends in concurrent when shares are no longer enforced, or when a lease of
// the set leaves; and in sliceOpens when a lease was thawed that had been frozen for the longest allowed time: its slice begins. TestPhases
// holds the scheduler to the table: an error in it ends no daemon.
var phases = map[phase][]phase{
	concurrent:  {sliceOpens, allCapped, cleared},
	sliceOpens:  {sliceRuns, concurrent},
	sliceRuns:   {sliceCloses, sliceOpens, concurrent},
	sliceCloses: {backlogRuns, sliceOpens, allCapped, cleared, concurrent}, // without a backlog after a trial: its lease is not frozen
	backlogRuns: {sliceOpens, allCapped, cleared, concurrent},
	allCapped:   {sliceOpens, cleared, concurrent},
	cleared:     {sliceOpens, concurrent},
}

// enter begins a phase.
func (s *Scheduler) enter(to phase) {
	if s.phase == to {
		return
	}
	if s.phase == concurrent {
		s.sensors.since = s.last
	}
	if s.entered != nil {
		s.entered(s.phase, to)
	}
	s.phase = to
}

// enforces reports whether leases have slices.
func (s *Scheduler) enforces() bool { return s.phase != concurrent }

// begun reports whether the leases of the set have been thawed for their slice.
func (s *Scheduler) begun() bool {
	return s.phase == sliceRuns || s.phase == sliceCloses || s.phase == backlogRuns
}
