package enforce

import "github.com/gpushare/gpushare/internal/usage"

// Recorder keeps the account of what leases used. Record does not block and takes no lock that is held during a write.
type Recorder interface{ Record(usage.Interval) }

// record reports an interval to the account, if there is one.
func (en *Enforcer) record(i *usage.Interval) {
	if en.Recorder != nil {
		en.Recorder.Record(*i)
	}
}
