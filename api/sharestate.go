package api

import "fmt"

// The states of a share.
const (
	ShareMet        = "met"
	ShareLess       = "less"
	ShareUnmet      = "unmet"
	ShareUnmeasured = "unmeasured"
)

// Qualifier is what follows a share wherever it is shown, unless it was measured to be met.
func (s *LeaseShare) Qualifier() string {
	switch {
	case s.Advisory:
		return " (advisory)"
	case s.State == ShareUnmet:
		return " (not met)"
	case !s.Enforced:
		return " (not enforced)"
	case s.State == ShareUnmeasured:
		return " (not measured)"
	}
	return ""
}

// StateText says whether the lease has its share, and why not. Empty where it does not share the time of a GPU.
func (s *LeaseShare) StateText() string {
	switch s.State {
	case ShareMet:
		return "met" + s.within()
	case ShareLess:
		return "it needs less than its share" + s.because() + s.within()
	case ShareUnmet:
		return "not met" + s.because()
	case ShareUnmeasured:
		return "not measured" + s.because()
	}
	return ""
}

func (s *LeaseShare) because() string {
	if s.Why == "" {
		return ""
	}
	return ": " + s.Why
}

func (s *LeaseShare) within() string {
	if s.Within == nil {
		return ""
	}
	return fmt.Sprintf(", within %.0f points over 10 s", *s.Within)
}
