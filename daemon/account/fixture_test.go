package account

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/usage"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/lease/leasetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is an account in virtual time, with one lease. busy is the part of each second that the lease's kernels run; nil: it
// is not measured.
type fixture struct {
	*testing.T
	*Account
	dir     string
	runDir  store.RunDir // empty: nothing is handed over
	boot    string
	table   *lease.Table
	id      string
	busy    *float64
	known   []api.Lease   // that ended, by package leases
	held    bool          // the lease is frozen
	stopped []string      // reasons
	dead    time.Duration // how long the account was being killed
	jump    time.Duration // of the system clock
	cancel  context.CancelFunc
	ended   chan struct{}
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(w *fixture)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ledger")
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{T: t, dir: dir, boot: "boot-1"}
		w.load(nil)
		w.table = leasetest.TableOf(t, w.config(), "vision", "dev", servertest.UidAlice)
		w.id = w.table.Live()[0].ID
		w.Table = w.table
		w.run()
		defer w.stop()
		test(w)
	})
}

func (w *fixture) config() lease.Config {
	return lease.Config{
		Isolation: leasetest.NoIsolation{}, Now: func() time.Time { return w.Reporter.Now() },
		Changed: func(l lease.Lease) { w.Changed(&l, "", nil) },
		Noticed: func(l lease.Lease, n lease.Notice) { w.Events.Publish(l.Event(n.Kind, n.Text)) },
	}
}

// StopInBackground takes the place of package leases.
func (w *fixture) StopInBackground(l *lease.Lease, reason string) {
	w.stopped = append(w.stopped, reason)
	if err := w.table.Ended(w.Context(), l.ID, reason); err != nil {
		w.Error(err)
	}
}

// EndedLeases is what package leases keeps until the next boot.
func (w *fixture) EndedLeases() []api.Lease { return w.known }

// start starts the account, with the leases of a previous run if saved is not nil.
func (w *fixture) start(saved []byte) {
	w.Helper()
	w.load(saved)
	w.run()
}

// load makes the account, with what the previous run left.
func (w *fixture) load(saved []byte) {
	w.Helper()
	began := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when the bubble's clock starts
	rep := report.NewReporter(slog.New(slog.DiscardHandler), func() time.Time { return time.Now().Add(w.jump) })
	st := state.NewState(nil, false)
	st.SetDesired(&state.Desired{Generation: 1, Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}}})
	w.Account = New(&Account{
		Reporter: rep,
		State:    st,
		Dir:      w.dir,
		RunDir:   w.runDir,
		BootID:   w.boot,
		Boot:     func() time.Duration { return time.Since(began) },
		Leases:   w,
		Held:     func(string) bool { return w.held },
	})
	w.Load()
	w.table = lease.New(w.config())
	w.Table = w.table
	if saved != nil {
		if err := w.table.Restore(saved); err != nil {
			w.Fatal(err)
		}
		for _, l := range w.table.Live() {
			w.table.Recovered(l.ID, lease.Process{})
		}
	}
	w.Recover()
}

func (w *fixture) run() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.ended = cancel, make(chan struct{})
	go func(a *Account, ended chan struct{}) {
		defer close(ended)
		a.Run(ctx)
	}(w.Account, w.ended)
}

func (w *fixture) stop() {
	w.cancel()
	<-w.ended
}

// kill ends the account as SIGKILL does: nothing is written any more. It returns the leases.
func (w *fixture) kill() []byte {
	w.Helper()
	b, err := w.table.State()
	if err != nil {
		w.Fatal(err)
	}
	if err := w.acquireFiles(w.Context()); err != nil { // The last writing finds no files.
		w.Fatal(err)
	}
	w.stop()
	w.dead += closeTimeout // So long it waits for them.
	return b
}

// elapse lets time of the bubble pass, without a measurement.
func elapse(d time.Duration) { time.Sleep(d) }

// pass lets time pass, with a measurement each second.
func (w *fixture) pass(d time.Duration) {
	for range int(d / time.Second) {
		from := time.Now()
		elapse(time.Second)
		for _, l := range w.table.Live() {
			i := usage.Interval{
				Subject: usage.Subject{Lease: l.ID, Generation: l.Generation, GPU: l.Place.GPUs[0]},
				From:    from,
				To:      time.Now(),
			}
			i.Memory = &usage.Memory{Mean: 1 << 30, Peak: 3 << 30}
			if w.busy != nil {
				i.Busy = &usage.Busy{Time: time.Duration(*w.busy * float64(time.Second))}
			}
			w.Record(i)
		}
		synctest.Wait()
	}
}

// revise changes idle of the grant.
func (w *fixture) revise(idle *api.IdleSpec) {
	w.table.Update(lease.View{
		Generation: uint64(time.Now().UnixNano()), GPUs: []lease.GPUView{{UUID: "GPU-1", Mode: api.ModeTimeslice, Capacity: 1 << 30}},
		Grants: []lease.Grant{{Tenant: "vision", Spec: api.GrantSpec{Name: "dev", Timeslice: &api.ShareSpec{Share: 50}, Idle: idle}}},
	})
}

// get sends a query as one of the users of servertest.
func (w *fixture) get(who, query string) (*api.Usage, *api.Error) {
	w.Helper()
	h := servertest.Handler(w.Reporter, server.Route{
		Method:  http.MethodGet,
		Pattern: "/v1/usage",
		Access:  server.Reader,
		What:    "read what leases used",
		Handle:  w.GetUsage,
		More:    server.More{Query: server.Query{"since": server.Text, "until": server.Text, "by": server.Text, "step": server.Text}},
	})
	rec := servertest.Request(h, servertest.Peers()[who], http.MethodGet, "/v1/usage?"+query, nil)
	if rec.Code != http.StatusOK {
		return nil, servertest.ErrorOf(w.T, rec)
	}
	u := new(api.Usage)
	if err := json.Unmarshal(rec.Body.Bytes(), u); err != nil {
		w.Fatal(err)
	}
	return u, nil
}

// total is what an admin sees of the last week.
func (w *fixture) total() api.UsageRow {
	w.Helper()
	u, e := w.get("root", "")
	if e != nil {
		w.Fatal(e)
	}
	return u.Total
}

func (w *fixture) endedLeases() []api.Lease {
	w.Helper()
	list, err := w.Account.EndedLeases(w.Context(), "7d", func(string, int) bool { return true })
	if err != nil {
		w.Fatal(err)
	}
	return list
}
