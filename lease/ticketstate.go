package lease

// ticketState is what becomes of a ticket. Only moveLocked changes it.
type ticketState string

// The states. A ticket begins as one that waits.
const (
	ticketWaiting    ticketState = "waiting"    // nothing is done for it
	ticketSoon       ticketState = "soon"       // it may fit when a change that runs is over
	ticketPlanned    ticketState = "planned"    // an instance is to be created for it
	ticketCreating   ticketState = "creating"   // the caller creates the instance
	ticketChosen     ticketState = "chosen"     // leases are chosen that are to be stopped for it
	ticketPreempting ticketState = "preempting" // they are being stopped, or have ended and their places are kept for it
	ticketPlaced     ticketState = "placed"     // it has its place
	ticketFailed     ticketState = "failed"     // it cannot have a place
	ticketCancelled  ticketState = "cancelled"  // its caller does not want a place any more
)

// ticketRule is what a state means.
type ticketRule struct {
	next     []ticketState
	over     bool // it is not in the queue any more
	instance bool // pending is set
	victims  bool // preempt is set; in other states it may be, while its instance is planned or created
	kept     bool // a request whose caller does not wait is not refused yet
}

// Each evaluation of the queue begins again for what the caller has not taken: soon, planned and chosen become what they were before.
// What was freed by preemption is kept while an instance is planned and created there.
var ticketStates = map[ticketState]ticketRule{
	ticketWaiting: {
		next: []ticketState{ticketSoon, ticketPlanned, ticketChosen, ticketPreempting, ticketPlaced, ticketFailed, ticketCancelled},
	},
	ticketSoon: {
		next: []ticketState{ticketWaiting, ticketFailed, ticketCancelled},
		kept: true,
	},
	ticketPlanned: {
		next:     []ticketState{ticketWaiting, ticketPreempting, ticketCreating, ticketFailed, ticketCancelled},
		instance: true,
		kept:     true,
	},
	ticketCreating: {
		next:     []ticketState{ticketWaiting, ticketPreempting, ticketPlaced, ticketFailed, ticketCancelled},
		instance: true,
		kept:     true,
	},
	ticketChosen: {
		next:    []ticketState{ticketWaiting, ticketPreempting, ticketFailed, ticketCancelled},
		victims: true,
	},
	ticketPreempting: {
		next:    []ticketState{ticketWaiting, ticketPlanned, ticketPlaced, ticketFailed, ticketCancelled},
		victims: true,
	},
	ticketPlaced:    {next: []ticketState{ticketWaiting}, over: true}, // Its place was occupied when it started.
	ticketFailed:    {over: true},
	ticketCancelled: {over: true},
}

// over reports whether the ticket is not in the queue any more.
func (s ticketState) over() bool { return ticketStates[s].over }

// kept reports whether a request whose caller does not wait stays in the queue: an instance may come for it.
func (s ticketState) kept() bool { return ticketStates[s].kept }

// ticketMoved sees each transition: tests hold it against the table.
var ticketMoved = func(_ *Ticket, _ ticketState) {}

// moveLocked puts the ticket into a state, without what the state does not have.
func (k *Ticket) moveLocked(to ticketState) {
	if to == k.state {
		return
	}
	ticketMoved(k, to)
	k.state = to
	rule := ticketStates[to]
	if !rule.instance {
		k.pending = nil
		if !rule.victims {
			k.preempt = nil
		}
	}
	if rule.over {
		k.claimed = nil
	}
}

// withoutInstance is the state of a ticket whose instance is dropped: what was freed for it is kept.
func (k *Ticket) withoutInstance() ticketState {
	if k.preempt != nil {
		return ticketPreempting
	}
	return ticketWaiting
}
