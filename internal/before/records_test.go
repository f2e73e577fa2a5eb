package before

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/gpu"
)

type limit struct {
	Watts int    `json:"watts"`
	Boot  string `json:"boot"`
}

const id = gpu.UUID("GPU-a")

func newRecords(t *testing.T) *Records[limit] {
	t.Helper()
	return &Records[limit]{
		Dir:     filepath.Join(t.TempDir(), "power"),
		Name:    func(id gpu.UUID) string { return string(id) },
		What:    "the power limit from before",
		Damaged: "remove it",
		Valid:   func(l limit) bool { return l.Watts != 0 },
	}
}

// A record is there for the next run until it is removed, and of one GPU only.
func TestARecordIsKeptUntilItIsForgotten(t *testing.T) {
	r := newRecords(t)
	if got, err := r.Get(id); got != nil || err != nil {
		t.Fatalf("at first %v %v is recorded", got, err)
	}
	want := limit{300, "x"}
	if err := r.Keep(id, want); err != nil {
		t.Fatal(err)
	}
	next := newRecords(t)
	next.Dir = r.Dir
	if got, err := next.Get(id); err != nil || got == nil || *got != want {
		t.Errorf("the next run reads %v %v, want %v", got, err, want)
	}
	if got, err := next.Get("GPU-b"); got != nil || err != nil {
		t.Errorf("of another GPU %v %v is recorded", got, err)
	}
	for range 2 { // A missing one is no error.
		if err := next.Forget(id); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := r.Get(id); got != nil || err != nil {
		t.Errorf("after its end %v %v is recorded", got, err)
	}
}

// What is recorded already is not written again: a full disk does not keep a GPU from a change that needs no new record.
func TestTheSameRecordIsNotWrittenAgain(t *testing.T) {
	r := newRecords(t)
	if err := r.Keep(id, limit{300, "x"}); err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(r.Path(id))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		was  limit
		same bool
	}{{limit{300, "x"}, true}, {limit{250, "x"}, false}} {
		if err := r.Keep(id, c.was); err != nil {
			t.Fatal(err)
		}
		if now, err := os.Stat(r.Path(id)); err != nil || os.SameFile(first, now) != c.same {
			t.Errorf("%v: the same file is %t, want %t (%v)", c.was, !c.same, c.same, err)
		}
	}
}

// What was before is not guessed from a damaged record, and the error says what helps.
func TestADamagedRecordIsAnError(t *testing.T) {
	for _, text := range []string{"", "{", `{"watts":0,"boot":"x"}`, "null", strings.Repeat("x", 1<<20)} {
		r := newRecords(t)
		if err := os.MkdirAll(r.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.Path(id), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := r.Get(id)
		if got != nil || err == nil || !strings.HasPrefix(err.Error(), "cannot read the power limit from before: ") {
			t.Errorf("%.20q is read as %v %v", text, got, err)
		}
	}
}

// Where nothing can be recorded, the change must not begin.
func TestARecordThatCannotBeWritten(t *testing.T) {
	r := newRecords(t)
	if err := os.WriteFile(r.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Keep(id, limit{300, "x"}); err == nil || !strings.HasPrefix(err.Error(), "cannot record the power limit from before: ") {
		t.Errorf("the error is %v", err)
	}
}
