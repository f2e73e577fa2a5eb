package step

import (
	"fmt"
	"slices"
	"strings"
)

// SubjectKind says what somebody is whom a step disturbs.
type SubjectKind int

// The kinds of subject.
const (
	TextOnly     SubjectKind = iota // known by what was written of it alone, as in a record
	Lease                           // a lease, by its id
	Process                         // a process of no lease, by its pid
	SliceMembers                    // whoever is in a slice, by the slice's name
)

// Subject is somebody whom a step disturbs. It is written down as its text, which is for people alone.
type Subject struct {
	Kind SubjectKind
	ID   string // of a lease; of a slice, its name
	User string // whose lease it is, where that is said
	PID  int    // of a process
	Text string // what more is said of a process: "python, for 12 s"; all that is known of one that was told
}

// LeaseOf is a lease; user is whose it is, or empty.
func LeaseOf(id, user string) Subject { return Subject{Kind: Lease, ID: id, User: user} }

// ProcessOf is a process with what is said of it, or with nothing.
func ProcessOf(pid int, text string) Subject { return Subject{Kind: Process, PID: pid, Text: text} }

// MembersOf is whoever is in a slice.
func MembersOf(slice string) Subject { return Subject{Kind: SliceMembers, ID: slice} }

// String names it for people: "red-1 of alice", "pid 7 (python)".
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
		return "whoever is in it"
	}
	return s.Text
}

// MarshalText writes it for people: records and answers have always had it so.
func (s Subject) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what is known of it then, which is its text.
func (s *Subject) UnmarshalText(b []byte) error {
	*s = Subject{Text: string(b)}
	return nil
}

// same tells whether both are the same one, however much is said of them.
func (s Subject) same(o Subject) bool {
	if s.Kind == TextOnly || o.Kind == TextOnly {
		return s == o
	}
	return s.Kind == o.Kind && s.ID == o.ID && s.PID == o.PID
}

// detail is how much is said of it.
func (s Subject) detail() int { return len(s.User) + len(s.Text) }

// Merge gives each subject once, in order, with the most that is said of it.
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

// Texts are the subjects for people. Those that read alike are told once.
func Texts(all []Subject) []string {
	var out []string
	for _, s := range all {
		if t := s.String(); !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// Join are the subjects in one line, for people.
func Join(all []Subject) string { return strings.Join(Texts(all), ", ") }
