package ledger

import "github.com/gpushare/gpushare/api"

// Answer returns a verification in the form of the API.
func (v *Verification) Answer() *api.AuditVerification {
	out := &api.AuditVerification{
		SchemaVersion: 1, Entries: v.Lines, First: v.First, Last: v.Last, SHA256: v.Head, Lost: v.Lost, Incomplete: v.Torn, Older: v.Older,
		MoreFindings: v.More, Anchored: v.Anchored, AnchoredSince: v.Since,
	}
	for _, f := range v.Findings {
		out.Findings = append(out.Findings, api.AuditFinding{
			File:      f.File,
			Line:      f.Line,
			First:     f.First,
			Last:      f.Last,
			After:     f.After,
			Before:    f.Before,
			Message:   f.Reason,
			PowerLoss: f.Crash,
		})
	}
	if b := v.Broken; b != nil {
		out.Broken = &api.BrokenLine{File: b.File, Line: b.Line, Message: b.Reason}
	}
	return out
}
