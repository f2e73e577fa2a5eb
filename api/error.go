package api

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind is the machine-readable reason of a refusal. The set is closed.
type Kind string

// The kinds.
const (
	KindNotFound Kind = "not-found" // the object does not exist
	KindConflict Kind = "conflict"  // another request changed it or is changing it
	KindInUse    Kind = "in-use"    // it would disturb a process or a lease
	KindInvalid  Kind = "invalid"   // the request or the spec is wrong
	KindDenied   Kind = "denied"    // the caller may not
	// KindNeedsPermission: the caller may, and has to say so: the driver resets a GPU.
	KindNeedsPermission Kind = "needs-permission"
	KindUnavailable     Kind = "unavailable" // not now: the driver, the daemon or a capacity is missing
	KindDegraded        Kind = "degraded"    // it ended, but not all of it was reached
	KindInfeasible      Kind = "infeasible"  // it can never fit
	KindInternal        Kind = "internal"    // a defect of gpushare
)

// kinds maps each kind once to its HTTP status and its exit code.
var kinds = map[Kind]struct{ status, exit int }{
	KindNotFound:    {404, ExitFailed},
	KindConflict:    {409, ExitConflict},
	KindInUse:       {423, ExitConflict},
	KindInvalid:     {400, ExitUsage},
	KindDenied:      {403, ExitDenied},
	KindUnavailable: {503, ExitUnreachable},
	KindDegraded:    {200, ExitDegraded},
	KindInfeasible:  {422, ExitInfeasible},
	KindInternal:    {500, ExitFailed},

	KindNeedsPermission: {428, ExitNeedsPermission},
}

// Exit codes of the command line.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitDenied      = 4
	ExitConflict    = 5
	ExitDegraded    = 6
	ExitInfeasible  = 7
	// ExitNeedsPermission: a change resets a GPU, and --allow-reset was not given.
	ExitNeedsPermission = 8
	ExitChanges         = 10 // plan --exit-code: something would change
	ExitIncomplete      = 11 // plan --exit-code: something differs that no step can change, or could not be read
	ExitSomeHosts       = 12 // --host: some of the hosts could not be read
)

// Kinds lists the closed set.
func Kinds() []Kind {
	return []Kind{
		KindNotFound,
		KindConflict,
		KindInUse,
		KindInvalid,
		KindDenied,
		KindNeedsPermission,
		KindUnavailable,
		KindDegraded,
		KindInfeasible,
		KindInternal,
	}
}

// Status is the HTTP status of a kind; 500 for an unknown one.
func (k Kind) Status() int {
	if e, ok := kinds[k]; ok {
		return e.status
	}
	return 500
}

// ExitCode is the command line's exit code of a kind; 1 for an unknown one.
func (k Kind) ExitCode() int {
	if e, ok := kinds[k]; ok {
		return e.exit
	}
	return ExitFailed
}

// Error is a refusal or a failure in JSON: one sentence that says what and where, and a hint that says what to do.
type Error struct {
	Kind    Kind         `json:"kind"`
	Message string       `json:"message"`
	Hint    string       `json:"hint,omitempty"`
	Fields  []FieldError `json:"fields,omitempty"` // with invalid: every place that is wrong
	// InUseBy has, with in-use, the device users of the GPUs whose change was refused.
	InUseBy []DeviceUser `json:"in_use_by,omitempty"`
	// Operation is, with conflict, the id of the operation to wait for.
	Operation string `json:"operation,omitempty"`
	// Planning is true, with conflict, while another change is only planned: it has no operation yet, and the same request may be
	// accepted a moment later.
	Planning bool `json:"planning,omitempty"`
	// Stale says, with conflict, what was applied since the spec was read that is applied now.
	Stale *StaleSpec `json:"stale,omitempty"`
	// Leases are, with in-use, all leases that the refused change would end, or end the enforcement of.
	Leases []LeaseEnd `json:"leases,omitempty"`
	// Resets are, with needs-permission, the UUIDs of the GPUs that the driver would reset.
	Resets []string `json:"resets,omitempty"`
	// Engines are, with in-use, the engines whose jobs may have a GPU that the refused change is of, seen or not.
	Engines []string `json:"engines,omitempty"`
	// Plan is what would be done, if the request only checks, and with needs-permission.
	Plan *Plan `json:"plan,omitempty"`
}

// LeaseEnd is what a change would end for one lease.
type LeaseEnd struct {
	Lease   string `json:"lease"`
	Tenant  string `json:"tenant"`
	Grant   string `json:"grant"`
	User    string `json:"user,omitempty"`
	Command string `json:"command,omitempty"`
	// Ends is what ends, as in "it ends, because its MIG instance is removed".
	Ends string `json:"ends"`
	// Continues: its processes are not stopped.
	Continues bool `json:"continues,omitempty"`
	// Lowers: it goes on, with less than it has for itself.
	Lowers bool `json:"lowers,omitempty"`
}

// String is one line about it.
func (l *LeaseEnd) String() string {
	out := l.Lease
	if l.User != "" {
		out += " of " + l.User
	}
	out += " (" + l.Tenant + "/" + l.Grant + "): " + l.Ends
	if l.Command == "" {
		return out
	}
	if l.Continues {
		return out + "; goes on: " + l.Command
	}
	return out + "; stops: " + l.Command
}

// StaleSpec is why a spec is refused that was edited from an earlier generation.
type StaleSpec struct {
	Base       uint64    `json:"base"`       // that it was edited from
	Generation uint64    `json:"generation"` // in force
	By         string    `json:"by"`
	At         time.Time `json:"at"`
	// Lost are lines of a diff: what was changed since base and would be changed back. "+ " is a line that is in force and not
	// in the new spec, "- " a line that was removed and would return. At most MaxLost.
	Lost []string `json:"lost_lines,omitempty"`
	More int      `json:"more_lines,omitempty"` // how many are not in Lost
	// Unknown is true if the text of base is not kept any longer: then Lost is everything in force that the new spec lacks.
	Unknown bool `json:"base_unknown,omitempty"`
}

// MaxLost is how many lines StaleSpec has.
const MaxLost = 40

// Error gives the message; the hint is not part of it.
func (e *Error) Error() string { return e.Message }

// DeviceUser is a process or a lease that uses a GPU or one of its instances.
type DeviceUser struct {
	GPU            string  `json:"gpu"`
	Instance       string  `json:"instance,omitempty"` // as in "1g.5gb at 6"; empty: the GPU as a whole
	PID            int     `json:"pid,omitempty"`      // 0: a lease without a process on the GPU
	Command        string  `json:"command,omitempty"`  // its short name
	Unit           string  `json:"unit,omitempty"`     // of systemd
	Tenant         string  `json:"tenant,omitempty"`
	Lease          string  `json:"lease,omitempty"`
	RunningSeconds float64 `json:"running_seconds,omitempty"` // since the process started
	Kept           bool    `json:"kept,omitempty"`            // --force does not stop it
}

// FieldError is one wrong place in a document.
type FieldError struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1; 0 when unknown
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"` // tenants[0].grants[1].timeslice.share
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// FieldErrors are all wrong places of a document.
type FieldErrors []FieldError

// Error gives one line for each place.
func (e FieldErrors) Error() string {
	var b strings.Builder
	for i, f := range e {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(f.Error())
	}
	return b.String()
}

// maxLine is how long a finding is as text, in bytes: with what a command writes before and after it, 500.
const maxLine = 460

// Error gives "file:line:column: path: message". What is too long is shortened: a name in its middle, the message at its end.
func (f FieldError) Error() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(middle(f.File, maxLine/3) + ":")
	}
	if f.Line > 0 {
		b.WriteString(strconv.Itoa(f.Line) + ":")
		if f.Column > 0 {
			b.WriteString(strconv.Itoa(f.Column) + ":")
		}
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if f.Path != "" {
		b.WriteString(middle(f.Path, maxLine/4) + ": ")
	}
	b.WriteString(f.Message)
	line := b.String()
	if len(line) <= maxLine {
		return line
	}
	return start(line, maxLine-len("…")) + "…"
}

// middle shortens text in its middle, where the names of files and paths of a spec say the least.
func middle(s string, most int) string {
	if len(s) <= most {
		return s
	}
	end := len(s) - most/2
	for end < len(s) && !utf8.RuneStart(s[end]) {
		end++
	}
	return start(s, most/2-len("…")) + "…" + s[end:]
}

// start is at most the first n bytes of a text, without a part of a letter.
func start(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// MaxRequest is how many bytes the body of a request has at most.
const MaxRequest = 1 << 20
