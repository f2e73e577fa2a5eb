package health

// Policy is what the spec says of one GPU.
type Policy struct {
	Warn     *int          // the temperature in °C from which a finding reports it; nil: where the hardware lowers its clocks
	PauseLow bool          // from there the leases of the lowest priority are paused
	Do       map[uint64]Do // what follows from an XID, where it is not what its class says
}

// Do is what follows from an XID.
type Do string

// What follows from an XID.
const (
	ReportOnly Do = "report" // events and conditions
	Close      Do = "close"  // and the GPU takes no new lease
)

// closes reports whether a GPU takes no new lease after an XID.
func (p Policy) closes(number uint64) bool {
	if do, ok := p.Do[number]; ok {
		return do == Close
	}
	return Of(number).Class.Closes()
}
