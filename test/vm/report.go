package vm

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// State is the result of a check.
type State string

// The outcomes of a check. An unfinished check was announced and not reported: the guest ended before its end.
const (
	Passed     State = "passed"
	Failed     State = "failed"
	Skipped    State = "skipped"
	Unfinished State = "unfinished"
)

// Outcome is one check.
type Outcome struct {
	Name     string
	State    State
	Duration time.Duration // in the guest, to a tenth of a second
	Why      string        // of a failure or a skip
	Log      []string      // output of a failed check, and the end of the journal
}

// Report is the report of one boot of the guest.
type Report struct {
	Outcomes []Outcome // in the order announced
	Notes    []string
	Stuck    bool // the guest was ended because it reported nothing
	Done     bool // the guest reached its end; otherwise missing checks count as failed
}

// ReadReport reads lines until r ends, and calls each with every line, if it is not nil. A line outside the protocol is an
// error: a check must not write to the port of the report.
//
//	plan NAME...    run NAME    ok NAME SECONDS    fail NAME WHY    skip NAME WHY    note TEXT    log NAME TEXT    done
func ReadReport(r io.Reader, each func(line string)) (Report, error) {
	var rep Report
	index := map[string]int{}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		line := strings.TrimRight(s.Text(), "\r")
		if each != nil {
			each(line)
		}
		if err := rep.take(line, index); err != nil {
			return rep, err
		}
	}
	if err := s.Err(); err != nil {
		return rep, fmt.Errorf("cannot read the guest's report: %w", err)
	}
	return rep, nil
}

func (rep *Report) take(line string, index map[string]int) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "plan":
		for name := range strings.FieldsSeq(rest) {
			index[name] = len(rep.Outcomes)
			rep.Outcomes = append(rep.Outcomes, Outcome{Name: name, State: Unfinished, Why: "the guest ended before it"})
		}
		return nil
	case "note":
		rep.Notes = append(rep.Notes, rest)
		return nil
	case "done":
		rep.Done = true
		return nil
	}
	name, text, _ := strings.Cut(rest, " ")
	i, ok := index[name]
	if !ok {
		return fmt.Errorf("cannot read the guest's report: %q is not about an announced check", line)
	}
	o := &rep.Outcomes[i]
	switch verb {
	case "run":
		o.Why = "the guest ended in the middle of it"
	case "ok":
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("cannot read the guest's report: %q has no time: %w", line, err)
		}
		o.State, o.Why, o.Duration = Passed, "", time.Duration(seconds*float64(time.Second))
	case "fail":
		o.State, o.Why = Failed, text
	case "skip":
		o.State, o.Why = Skipped, text
	case "log":
		o.Log = append(o.Log, text)
	default:
		return fmt.Errorf("cannot read the guest's report: unknown line %q", line)
	}
	return nil
}
