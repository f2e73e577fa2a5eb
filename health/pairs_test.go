package health

import (
	"testing"
	"time"
)

func TestPairs(t *testing.T) {
	gi := uint32(2)
	event := func(second float64) Report {
		return Report{GPU: "GPU-1", XID: 31, At: noon.Add(time.Duration(second * float64(time.Second))), GI: &gi}
	}
	line := func(second float64) Report {
		r := event(second)
		r.FromLog, r.PID, r.GI = true, 7, nil
		return r
	}
	other := event(0.5)
	other.GPU = "GPU-2"
	for name, c := range map[string]struct {
		without bool
		reports []Report
		counted int // errors
		named   int // of the answers that have the process
		inGI    int // of the answers that have the instance
	}{
		"the event, then the line":      {reports: []Report{event(0), line(0.5)}, counted: 1, named: 1, inGI: 1},
		"the line, then the event":      {reports: []Report{line(0), event(0.5)}, counted: 1, named: 1},
		"the event alone":               {reports: []Report{event(0)}, counted: 1, inGI: 1},
		"the line alone":                {reports: []Report{line(0)}, counted: 1, named: 1},
		"the line is late":              {reports: []Report{event(0), line(3)}, counted: 1, named: 1, inGI: 1},
		"the line is of another error":  {reports: []Report{event(0), line(20)}, counted: 2, named: 1, inGI: 1},
		"the event is of another error": {reports: []Report{line(0), event(20)}, counted: 2, named: 1, inGI: 1},
		"two errors":                    {reports: []Report{event(0), event(0.1), line(0.2), line(0.3)}, counted: 2, named: 2, inGI: 2},
		"two errors, line by line":      {reports: []Report{line(0), event(0.1), line(0.2), event(0.3)}, counted: 2, named: 2},
		"another GPU":                   {reports: []Report{event(0), other, line(0.6)}, counted: 2, named: 1, inGI: 2},
		"the log cannot be read":        {without: true, reports: []Report{event(0), event(0.1)}, counted: 2, inGI: 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pairs{WithoutLog: c.without}
			var out []Report
			for _, r := range c.reports {
				out = append(out, p.Add(r)...)
			}
			if c.without {
				if _, waits := p.Next(noon); waits || len(out) != c.counted {
					t.Errorf("it waits for the log: %+v", out)
				}
			}
			out = append(out, p.Due(noon.Add(time.Hour))...)
			counted, named, inGI := 0, 0, 0
			for _, r := range out {
				if !r.Counted {
					counted++
				}
				if r.PID == 7 {
					named++
				}
				if r.GI != nil {
					inGI++
				}
			}
			if counted != c.counted || named != c.named || inGI != c.inGI {
				t.Errorf(
					"%d errors, %d with the process, %d with the instance; want %d, %d, %d: %+v", counted, named, inGI, c.counted,
					c.named, c.inGI, out,
				)
			}
		})
	}
}

// A storm of errors keeps a bounded number of reports.
func TestPairsAreBounded(t *testing.T) {
	var p Pairs
	out := 0
	for range 10 * mostPending {
		out += len(p.Add(Report{GPU: "GPU-1", XID: 79, At: noon}))
	}
	if len(p.events) > mostPending || out != 9*mostPending {
		t.Errorf("%d wait, and %d were returned", len(p.events), out)
	}
	if d, waits := p.Next(noon); !waits || d != awaitLog {
		t.Errorf("the next is due in %s, %t", d, waits)
	}
}
