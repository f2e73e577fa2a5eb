package step

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestSubjectsAreNamed(t *testing.T) {
	for want, s := range map[string]Subject{
		"red-1":               LeaseOf("red-1", ""),
		"red-1 of alice":      LeaseOf("red-1", "alice"),
		"pid 7":               ProcessOf(7, ""),
		"pid 7 (python)":      ProcessOf(7, "python"),
		"all processes in it": MembersOf("red/part"),
		"what was written":    {Text: "what was written"},
	} {
		if got := s.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Subjects are equal by kind and id, not by their text.
func TestMergeSubjects(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []Subject
		want []string
	}{
		{"no subjects", nil, nil},
		{"a lease that is stopped, and what it has", []Subject{LeaseOf("red-1", "alice"), LeaseOf("red-1", "")}, []string{"red-1 of alice"}},
		{"the other way round", []Subject{LeaseOf("red-1", ""), LeaseOf("blue-1", ""), LeaseOf("red-1", "alice")}, []string{"red-1 of alice", "blue-1"}},
		{"a lease whose name begins like another's", []Subject{LeaseOf("red-1 of a", ""), LeaseOf("red-1", "")}, []string{"red-1 of a", "red-1"}},
		{"a process", []Subject{ProcessOf(7, "python"), ProcessOf(7, ""), ProcessOf(77, "")}, []string{"pid 7 (python)", "pid 77"}},
		{"two slices", []Subject{MembersOf("red"), MembersOf("red"), MembersOf("blue")}, []string{"all processes in it"}},
		{"of a record", []Subject{{Text: "red-1"}, {Text: "red-1"}, LeaseOf("red-1", "")}, []string{"red-1"}},
	} {
		if got := Texts(Merge(c.in)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// Records and replies contain the text.
func TestSubjectsAreWrittenAsText(t *testing.T) {
	b, err := json.Marshal(Step{Disturbs: []Subject{LeaseOf("red-1", "alice"), ProcessOf(7, "python")}})
	if err != nil {
		t.Fatal(err)
	}
	var read struct{ Disturbs []string }
	if err := json.Unmarshal(b, &read); err != nil || !slices.Equal(read.Disturbs, []string{"red-1 of alice", "pid 7 (python)"}) {
		t.Errorf("written as %s: %v", b, err)
	}
	var again Step
	if err := json.Unmarshal(b, &again); err != nil || !slices.Equal(Texts(again.Disturbs), read.Disturbs) {
		t.Errorf("read as %+v: %v", again, err)
	}
}
