package step

import (
	"fmt"
	"slices"
	"strings"
)

// SubjectKind is the kind of a subject.
type SubjectKind int

// The kinds of subject.
const (
	TextOnly     SubjectKind = iota // known by its text only, as in a record
	Lease                           // a lease, by its id
	Process                         // a process of no lease, by its pid
	SliceMembers                    // the processes in a slice, by the slice's name
)

// Subject is what a step disturbs: a lease or processes. It is recorded as its text, which is for people.
type Subject struct {
	Kind SubjectKind
	ID   string // of a lease; of a slice, its name
	User string // of a lease, where known
	PID  int    // of a process
	Text string // details of a process: "python, for 12 s"; of kind TextOnly, all that is known
}

// LeaseOf is the subject of a lease; user is its user, or empty.
func LeaseOf(id, user string) Subject { return Subject{Kind: Lease, ID: id, User: user} }

// ProcessOf is the subject of a process; text are details, or empty.
func ProcessOf(pid int, text string) Subject { return Subject{Kind: Process, PID: pid, Text: text} }

// MembersOf is the subject of all processes in a slice.
func MembersOf(slice string) Subject { return Subject{Kind: SliceMembers, ID: slice} }

// String describes it for people: "red-1 of alice", "pid 7 (python)".
func (s Subject) String() string {
	switch s.Kind {
	case Lease:
		if s.User != "" {
			return s.ID + " of " + s.User
		}
		return s.ID
	case Process:
		if s.Text != "" {
			return fmt.Sprintf("pid %d (%s)", s.PID, s.Text)
		}
		return fmt.Sprintf("pid %d", s.PID)
	case SliceMembers:
		return "all processes in it"
	}
	return s.Text
}

// MarshalText writes it as its text.
func (s Subject) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads its text.
func (s *Subject) UnmarshalText(b []byte) error {
	*s = Subject{Text: string(b)}
	return nil
}

// same reports whether both are the same subject, with or without details.
func (s Subject) same(o Subject) bool {
	if s.Kind == TextOnly || o.Kind == TextOnly {
		return s == o
	}
	return s.Kind == o.Kind && s.ID == o.ID && s.PID == o.PID
}

// detail is how detailed it is.
func (s Subject) detail() int { return len(s.User) + len(s.Text) }

// Merge returns each subject once, in order, with the most detail.
func Merge(lists ...[]Subject) []Subject {
	var out []Subject
	for _, s := range slices.Concat(lists...) {
		i := slices.IndexFunc(out, s.same)
		if i < 0 {
			out = append(out, s)
		} else if s.detail() > out[i].detail() {
			out[i] = s
		}
	}
	return out
}

// Texts are the subjects for people. Equal texts are listed once.
func Texts(all []Subject) []string {
	var out []string
	for _, s := range all {
		if t := s.String(); !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// Join is the subjects in one line, for people.
func Join(all []Subject) string { return strings.Join(Texts(all), ", ") }
