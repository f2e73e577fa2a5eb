package adminaction

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/store"
)

// What changes something is recorded, noted, published and passed on, each once. What changes nothing is only noted as that, and what
// cannot be recorded is none of it: the refusal says so, and where space is missing.
func TestDo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	st, _, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	refreshed, rep := 0, report.NewReporter(slog.New(slog.DiscardHandler), time.Now)
	a := &Actions{Reporter: rep, State: state.NewState(st, false), Refresh: func(context.Context) {
		refreshed++
		if !closing.Cordoned.Closes(st.State(), "GPU-1") {
			t.Error("it is passed on before it is recorded")
		}
	}}
	at := closing.OnGPU("GPU-1")
	do := func() (bool, string, error) {
		c := &server.Call{R: httptest.NewRequest(http.MethodPost, "/", nil), Caller: &server.Caller{Name: "root"}}
		changed, err := a.Do(c, &Action{
			Records: "which GPUs are cordoned",
			Update: func(s *store.State) bool {
				was := closing.Cordoned.At(s, at)
				if was == nil {
					closing.Cordoned.Close(s, store.Closure{Where: at})
				}
				return was == nil
			},
			Event: "gpu.cordoned",
			GPU:   "GPU-1",
			Done:  "cordoned GPU 1",
			Note:  "cordoned: its fan",
		})
		return changed, c.Note.GPU + ": " + c.Note.Text, err
	}
	events := func() (out []string) {
		for _, e := range rep.Events.Recent(func(*api.Event) bool { return true }, time.Time{}, time.Time{}) {
			out = append(out, e.Kind+" "+e.GPU+" "+e.Message)
		}
		return out
	}

	for _, want := range []struct {
		changed bool
		note    string
	}{{true, "GPU-1: cordoned: its fan"}, {false, "GPU-1: no change"}} {
		if changed, note, err := do(); err != nil || changed != want.changed || note != want.note {
			t.Errorf("changed %v, note %q, %v, want %v, %q", changed, note, err, want.changed, want.note)
		}
		if got := events(); len(got) != 1 || got[0] != "gpu.cordoned GPU-1 root cordoned GPU 1" || refreshed != 1 {
			t.Errorf("published %q, passed on %d times", got, refreshed)
		}
	}

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // Otherwise the directory is made again.
		t.Fatal(err)
	}
	at = closing.OnGPU("GPU-2")
	_, note, err := do()
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != api.KindInternal ||
		!strings.HasPrefix(
			e.Message,
			"cannot record which GPUs are cordoned: ",
		) || e.Hint != "nothing was changed; "+dir+" was removed or replaced while gpushared ran: see 'gpushare doctor'" {
		t.Errorf("what cannot be recorded is answered with %v", err)
	}
	if note != ": " || len(events()) != 1 || refreshed != 1 || closing.Cordoned.Closes(st.State(), "GPU-2") {
		t.Errorf("what cannot be recorded has the note %q, is published in %q, and passed on %d times", note, events(), refreshed)
	}
}
