package specs

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/store/storetest"
)

const one, two = "version: v1\ntenants:\n  - {name: a}\n", "version: v1\ntenants:\n  - {name: a}\n  - {name: b}\n"

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// kept is a state in which specs were accepted.
func kept(t *testing.T, f func(*store.State)) *Specs {
	t.Helper()
	st := storetest.Open(t)
	if err := st.Update(func(s *store.State) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
	return &Specs{State: state.NewState(st, false)}
}

func call(t *testing.T, handle func(*server.Call) error, generation string, out any) error {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.SetPathValue("generation", generation)
	err := handle(&server.Call{R: r, W: w})
	if err == nil {
		if e := json.Unmarshal(w.Body.Bytes(), out); e != nil {
			t.Fatal(e)
		}
	}
	return err
}

func TestHistory(t *testing.T) {
	h := kept(t, func(s *store.State) {
		s.Accept(one, "root", noon, store.Resolved{})
		s.Accept(two, "alice", noon.Add(time.Hour), store.Resolved{})
		s.Unmanage("", "root", noon.Add(2*time.Hour), store.Resolved{}, store.UnmanagedAll)
		s.Accept(one, "root", noon.Add(3*time.Hour), store.Resolved{})
	})
	var got api.SpecHistory
	if err := call(t, h.GetHistory, "", &got); err != nil {
		t.Fatal(err)
	}
	want := api.SpecHistory{SchemaVersion: 1, Revisions: []api.SpecRevision{
		{Generation: 1, By: "root", At: noon, Changes: []string{"+ tenants.a"}},
		{Generation: 2, By: "alice", At: noon.Add(time.Hour), Changes: []string{"+ tenants.b"}},
		{Generation: 3, By: "root", At: noon.Add(2 * time.Hour), Unmanaged: store.UnmanagedAll},
		{Generation: 4, By: "root", At: noon.Add(3 * time.Hour), InForce: true, Changes: []string{"+ tenants.a"}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var doc api.SpecDocument
	if err := call(t, h.GetRevision, "2", &doc); err != nil || doc.YAML != two || doc.By != "alice" || doc.Generation != 2 {
		t.Errorf("%v, generation 2 is %+v", err, doc)
	}
	for generation, says := range map[string]string{
		"3": "generation 3 has no spec: root unmanaged the node at 2026-03-01T14:00:00Z",
		"9": `generation "9" is not kept`,
		"x": `generation "x" is not kept`,
	} {
		var refused *api.Error
		if err := call(
			t, h.GetRevision, generation, &doc,
		); !errors.As(err, &refused) || refused.Kind != api.KindNotFound || refused.Message != says ||
			refused.Hint == "" {
			t.Errorf("%s: %v", generation, err)
		}
	}
}

// The revisions before the oldest that is kept are not known, so neither is what that one changed.
func TestHistoryForgets(t *testing.T) {
	h := kept(t, func(s *store.State) {
		for range 25 {
			s.Accept(one, "root", noon, store.Resolved{})
		}
	})
	var got api.SpecHistory
	if err := call(t, h.GetHistory, "", &got); err != nil || len(got.Revisions) != 20 || got.Revisions[0].Generation != 6 ||
		got.Revisions[0].Changes != nil {
		t.Errorf("%v: %+v", err, got)
	}
	if err := call(t, kept(t, func(*store.State) {}).GetHistory, "", &got); err != nil || len(got.Revisions) != 0 {
		t.Errorf("without a spec: %v: %+v", err, got)
	}
}
