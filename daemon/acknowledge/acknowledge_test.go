package acknowledge

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is one run of a daemon on a directory, with a clock of its own.
type fixture struct {
	*Acknowledgements
	t   *testing.T
	dir string
	now time.Time
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, dir: filepath.Join(t.TempDir(), "state"), now: time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) start() {
	f.t.Helper()
	st, _, err := store.Open(f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	clock := func() time.Time { return f.now }
	f.Acknowledgements = &Acknowledgements{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), clock),
		State:    state.NewState(st, false),
		Began:    f.now,
		Wake:     loop.NewWake(),
	}
}

func (f *fixture) stop() {
	if err := f.State.Store.Close(); err != nil {
		f.t.Error(err)
	}
}

// restart ends the run and begins another one, which knows no condition yet.
func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	f.start()
}

func (f *fixture) appear() {
	f.Conditions.Put("held", "GPU-1", api.Condition{GPU: "GPU-1", Message: "held: in use"})
}

// one returns the only condition as the status has it.
func (f *fixture) one() api.Condition {
	f.t.Helper()
	list := f.Annotate(f.Conditions.List())
	if len(list) != 1 {
		f.t.Fatalf("%d conditions, want 1", len(list))
	}
	return list[0]
}

// post makes a request of an administrator.
func (f *fixture) post(handle func(*server.Call) error, id, body string) (out api.AcknowledgeResult, note string, err error) {
	f.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)).WithContext(f.t.Context())
	r.SetPathValue("id", id)
	w := httptest.NewRecorder()
	c := &server.Call{W: w, R: r, Caller: &server.Caller{Name: "root", Admin: true}}
	if err := handle(c); err != nil {
		return out, "", err
	}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		f.t.Fatal(err)
	}
	return out, c.Note.Text, nil
}

// ack acknowledges the only condition.
func (f *fixture) ack(body string) api.AcknowledgeResult {
	f.t.Helper()
	out, note, err := f.post(f.PostAck, f.one().ID, body)
	if err != nil || !out.Changed || !strings.Contains(note, "acknowledged held-") || !strings.Contains(note, "in use") {
		f.t.Fatalf("cannot acknowledge it: %v; the audit has %q", err, note)
	}
	return out
}

func (f *fixture) want(acknowledged bool, when string) {
	f.t.Helper()
	f.prune()
	if got := f.one().Acknowledged != nil; got != acknowledged {
		f.t.Errorf("%s: acknowledged %v, want %v", when, got, acknowledged)
	}
}

func TestAcknowledgedUntilTheTimeIsOver(t *testing.T) {
	f := newFixture(t)
	f.appear()
	out := f.ack(`{"for":"2h","reason":"the board is replaced today"}`)
	k := out.Condition.Acknowledged
	if k == nil || k.By != "root" || k.Reason != "the board is replaced today" || !k.At.Equal(f.now) || k.Until == nil ||
		!k.Until.Equal(f.now.Add(2*time.Hour)) {
		t.Fatalf("the answer has %+v", k)
	}
	f.now = f.now.Add(2*time.Hour - time.Second)
	f.want(true, "a second before the end")
	f.restart()
	f.appear()
	f.want(true, "after a restart")
	f.now = f.now.Add(time.Second)
	if f.one().Acknowledged != nil {
		t.Error("it is acknowledged at the end of its time, before it is removed")
	}
	sub, stop := f.Events.SubscribeTo(func(*api.Event) bool { return true })
	defer stop()
	before := f.Version()
	f.want(false, "at the end")
	if f.Version() == before || len(f.State.Stored().Acknowledged) != 0 {
		t.Error("the status is not read again, or the record is kept")
	}
	if e := <-sub.C; e.Kind != "condition.unacknowledged" {
		t.Errorf("the event is %+v", e)
	}
}

func TestAcknowledgementEndsWithItsCondition(t *testing.T) {
	f := newFixture(t)
	f.appear()
	f.ack("{}")
	f.now = f.now.Add(1000 * time.Hour)
	f.want(true, "without a time")
	f.Conditions.Replace("held", nil)
	f.now = f.now.Add(time.Second)
	f.appear() // between two passes
	if f.one().Acknowledged != nil {
		t.Error("one that ended and came back is acknowledged")
	}
	f.want(false, "it came back")

	f.ack("{}")
	f.Conditions.Replace("held", nil)
	f.prune()
	if len(f.State.Stored().Acknowledged) != 0 {
		t.Error("it is kept after its condition")
	}
}

// A daemon that starts does not know yet what is still so.
func TestAcknowledgementSurvivesARestart(t *testing.T) {
	f := newFixture(t)
	f.appear()
	f.ack("{}")
	f.restart()
	f.prune()
	f.now = f.now.Add(grace - time.Second)
	f.prune()
	f.appear()
	f.want(true, "found again after a while")
	f.restart()
	f.now = f.now.Add(grace)
	f.prune()
	if len(f.State.Stored().Acknowledged) != 0 {
		t.Error("an acknowledgement of a condition that the daemon does not find any more is kept")
	}
}

func TestUnacknowledge(t *testing.T) {
	f := newFixture(t)
	f.appear()
	f.ack("{}")
	for _, want := range []bool{true, false} {
		if out, _, err := f.post(f.PostUnack, f.one().ID, ""); err != nil || out.Changed != want || out.Condition.Acknowledged != nil {
			t.Errorf("changed %v, want %v: %+v, %v", out.Changed, want, out, err)
		}
	}
	f.want(false, "afterwards")
}

// A request that is refused changes nothing.
func TestAcknowledgeRefuses(t *testing.T) {
	f := newFixture(t)
	f.appear()
	for body, kind := range map[string]api.Kind{
		`{"for":"0s"}`: api.KindInvalid, `{"for":"9000h"}`: api.KindInvalid, `{"reason":"two\nlines"}`: api.KindInvalid, `{"reason":"` + strings.Repeat("x", 501) + `"}`: api.KindInvalid,
		`{"until":"tomorrow"}`: api.KindInvalid,
	} {
		_, _, err := f.post(f.PostAck, f.one().ID, body)
		if refused, ok := errors.AsType[*api.Error](err); !ok || refused.Kind != kind {
			t.Errorf("%.40s: %v", body, err)
		}
	}
	_, _, err := f.post(f.PostAck, "held-00000000", "{}")
	if refused, ok := errors.AsType[*api.Error](err); !ok || refused.Kind != api.KindNotFound {
		t.Errorf("an unknown condition: %v", err)
	}
	if len(f.State.Stored().Acknowledged) != 0 {
		t.Error("something is acknowledged")
	}
}

// The loop wakes up when the first time is over.
func TestRunEndsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.Now, f.Reporter.Now = time.Now, time.Now
		f.appear()
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Run(t.Context())
		}()
		synctest.Wait()
		f.ack(`{"for":"1h"}`)
		time.Sleep(time.Hour - time.Second)
		synctest.Wait()
		if len(f.State.Stored().Acknowledged) != 1 {
			t.Error("it ended before its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(f.State.Stored().Acknowledged) != 0 {
			t.Error("it did not end")
		}
	})
}
