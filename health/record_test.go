package health

import (
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func at(minutes int) Moment {
	return Moment{At: noon.Add(time.Duration(minutes) * time.Minute), Boot: "boot-1", Driver: "load-1"}
}

var (
	answers    = Seen{Answers: true, Memory: true}
	lost       = Seen{Lost: true}
	hangs      = Seen{}
	good       = &gpu.Health{Recovery: gpu.RecoveryNone, Rows: &gpu.RemappedRows{}}
	unknown    = &gpu.Health{}
	requesting = &gpu.Health{Recovery: gpu.RecoveryReset}
	pending    = &gpu.Health{Recovery: gpu.RecoveryNone, Rows: &gpu.RemappedRows{Pending: true}}
	failed     = &gpu.Health{Recovery: gpu.RecoveryNone, Rows: &gpu.RemappedRows{Failed: true}}
)

// happening is one thing that happens to a GPU.
type happening func(Record, Policy, int) Record

func xid(number uint64) happening {
	return func(r Record, p Policy, minute int) Record { return r.AfterXID(number, p, at(minute)) }
}

func seen(s Seen) happening {
	return func(r Record, _ Policy, minute int) Record { return r.AfterObservation(s, at(minute)) }
}

func read(h *gpu.Health, s Seen) happening {
	return func(r Record, p Policy, minute int) Record { return r.AfterReading(h, s, p, at(minute)) }
}

func boots(r Record, _ Policy, minute int) Record {
	return r.AfterObservation(answers, Moment{At: at(minute).At, Boot: "boot-2", Driver: "load-2"})
}

func retries(r Record, _ Policy, minute int) Record { return r.Retried(at(minute)) }

func TestRecord(t *testing.T) {
	onlyReport := func(numbers ...uint64) Policy {
		p := Policy{Do: map[uint64]Do{}}
		for _, n := range numbers {
			p.Do[n] = ReportOnly
		}
		return p
	}
	for name, c := range map[string]struct {
		policy Policy
		happen []happening
		state  string
		reason string // a part of it
	}{
		"an error of a program":                                       {happen: []happening{xid(31), xid(13), xid(43)}},
		"contained memory errors and replaced rows":                   {happen: []happening{xid(94), xid(63)}},
		"an XID that is not known":                                    {happen: []happening{xid(9999)}},
		"an uncontained memory error":                                 {happen: []happening{xid(95)}, state: Closed, reason: "XID 95 ("},
		"the first cause stays":                                       {happen: []happening{xid(95), xid(119)}, state: Closed, reason: "XID 95 ("},
		"unless the GPU is lost":                                      {happen: []happening{xid(95), xid(79)}, state: Closed, reason: "XID 79 ("},
		"the spec only reports it":                                    {policy: onlyReport(95), happen: []happening{xid(95)}},
		"the spec closes":                                             {policy: Policy{Do: map[uint64]Do{63: Close}}, happen: []happening{xid(63)}, state: Closed, reason: "XID 63 ("},
		"good readings alone open nothing":                            {happen: []happening{xid(95), read(good, answers), read(unknown, answers), seen(answers)}, state: Closed},
		"a GPU that hung and answers was not reset":                   {happen: []happening{xid(119), seen(hangs), seen(answers)}, state: Closed},
		"a GPU that was lost and answers was":                         {happen: []happening{xid(95), seen(lost), seen(answers)}, state: Testing, reason: "it is tested after XID 95 ("},
		"and opens with good readings":                                {happen: []happening{xid(95), seen(lost), seen(answers), read(good, answers)}},
		"and with readings that are not known":                        {happen: []happening{xid(95), seen(lost), seen(answers), read(unknown, answers)}},
		"but not with bad ones":                                       {happen: []happening{xid(95), seen(lost), seen(answers), read(pending, answers)}, state: Closed, reason: "its test failed: rows of its memory wait for a reset"},
		"nor with memory that cannot be read":                         {happen: []happening{xid(95), seen(lost), seen(answers), read(good, Seen{Answers: true})}, state: Closed, reason: "its memory cannot be read"},
		"until these become good":                                     {happen: []happening{xid(95), retries, read(pending, answers), read(good, answers)}},
		"it is tested when it answers":                                {happen: []happening{xid(79), boots, read(good, lost)}, state: Testing},
		"a boot":                                                      {happen: []happening{xid(79), seen(lost), boots, read(good, answers)}},
		"the driver requested something, and no longer does":          {happen: []happening{xid(95), read(requesting, answers), read(good, answers)}},
		"the driver requests something without an XID":                {happen: []happening{read(requesting, answers)}, state: Closed, reason: "the driver says that it needs a reset"},
		"and no longer does":                                          {happen: []happening{read(requesting, answers), read(good, answers)}},
		"the driver requests something, and the spec only reports it": {policy: onlyReport(154), happen: []happening{read(requesting, answers)}},
		"and a test then does not fail":                               {policy: onlyReport(154), happen: []happening{xid(95), retries, read(requesting, answers)}},
		"a row that could not be replaced":                            {happen: []happening{read(failed, answers)}, state: Closed, reason: "could not be replaced"},
		"which the spec only reports":                                 {policy: onlyReport(64), happen: []happening{read(failed, answers)}},
		"rows that wait for a reset":                                  {happen: []happening{read(pending, answers)}},
		"which close, as the spec says":                               {policy: Policy{Do: map[uint64]Do{63: Close}}, happen: []happening{read(pending, answers)}, state: Closed},
		"retry of an open GPU":                                        {happen: []happening{retries}},
		"retry with good readings":                                    {happen: []happening{xid(119), retries, read(good, answers)}},
		"retry while the driver requests something":                   {happen: []happening{xid(119), retries, read(requesting, answers)}, state: Closed, reason: "its test failed: the driver says that it needs a reset"},
		"an XID during the test":                                      {happen: []happening{xid(119), retries, xid(120), read(good, answers)}, state: Closed, reason: "XID 120 ("},
		"an XID during the test that the spec only reports it":        {policy: onlyReport(120), happen: []happening{xid(119), retries, xid(120), read(good, answers)}},
	} {
		t.Run(name, func(t *testing.T) {
			var r Record
			for i, happens := range c.happen {
				r = happens(r, c.policy, i)
				if again := happens(r, c.policy, i); r.State != Testing && again != r && !(again.Open() && r.State == Closed) {
					t.Errorf("after %d it is %+v, and after the same again %+v", i, r, again)
				}
			}
			if r.State != c.state || !strings.Contains(r.Reason(), c.reason) || r.Open() != (c.state == "") {
				t.Errorf("it is %q: %s; want %q: %s", r.State, r.Reason(), c.state, c.reason)
			}
			if !r.Open() && (!r.Since.Equal(noon) || !strings.Contains(r.Helps("3"), "'gpushare gpu retry 3' tests it again")) {
				t.Errorf("it is so since %s, and %q helps", r.Since, r.Helps("3"))
			}
		})
	}
}

// Every state has a way out, from everything that may have happened before.
func TestEveryStateHasAnExit(t *testing.T) {
	all := []happening{
		xid(31),
		xid(79),
		xid(95),
		xid(64),
		seen(answers),
		seen(lost),
		seen(hangs),
		read(good, answers),
		read(unknown, answers),
		read(requesting, answers),
		read(pending, answers),
		read(failed, answers),
		read(good, lost),
		boots,
		retries,
	}
	var walk func(r Record, depth int)
	checked := map[Record]bool{}
	walk = func(r Record, depth int) {
		if !checked[r] {
			checked[r] = true
			for name, end := range map[string]Record{
				"a boot": boots(r, Policy{}, 99).AfterReading(good, answers, Policy{}, at(99)),
				"retry":  r.Retried(at(99)).AfterReading(good, answers, Policy{}, at(99)),
			} {
				if !end.Open() {
					t.Errorf("after %s %+v is %+v", name, r, end)
				}
			}
		}
		if depth == 0 {
			return
		}
		for _, happens := range all {
			walk(happens(r, Policy{}, 0), depth-1)
		}
	}
	walk(Record{}, 4)
	if len(checked) < 10 {
		t.Errorf("only %d records were checked", len(checked))
	}
}

func TestCatalog(t *testing.T) {
	for number, class := range map[uint64]Class{
		13: Program, 31: Program, 43: Program, 45: Notice, 48: Reset, 63: Rows, 64: Reset, 74: Reset, 79: Lost, 92: Notice, 94: Contained, 95: Reset, 109: Reset,
		119: Reset, 120: Reset, 140: Reset, 144: Read, 154: Read, 156: Reset, 157: Notice, 0: Notice, 9999: Notice,
	} {
		if x := Of(number); x.Class != class || x.Number != number || x.Meaning == "" {
			t.Errorf("XID %d is %+v, want the class %s", number, x, class)
		}
	}
	for _, x := range catalog {
		if x.Class.Closes() && x.Class.Helps("3") == "" {
			t.Errorf("%s closes a GPU, and nothing helps", x)
		}
	}
}
