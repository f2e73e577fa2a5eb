package top

import "github.com/gpushare/gpushare/api"

// Sum is what leases are due, use and have together. Leases that wait have nothing, and are not added.
type Sum struct {
	Leases       int
	Due, Busy    float64 // of their shares, in percent of a GPU's time
	Shares       int     // leases with a share
	Measured     int     // those of which it is known how much they use
	Bytes        uint64  // GPU memory
	BytesUnknown bool    // of a lease it is not known
}

// Add adds a lease.
func (t *Sum) Add(l *api.Lease) {
	t.Leases++
	if h := l.Share; h != nil {
		t.Shares++
		if h.Due != nil {
			t.Due += *h.Due
		} else {
			t.Due += h.Entitled
		}
		if h.Busy != nil {
			t.Measured++
			t.Busy += *h.Busy
		}
	}
	if l.GPUMemory == nil || l.GPUMemory.Unknown {
		t.BytesUnknown = true
	} else {
		t.Bytes += l.GPUMemory.Used
	}
}
