package report

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/ledger"
)

const (
	// anchorInterval is how often the newest line is in the journal, so that a host that gets the journal can prove it.
	anchorInterval = time.Hour
	// verifyInterval is how often all lines are verified. It takes about a second for 64 MiB.
	verifyInterval = 24 * time.Hour
	// mostDamages is how much of what is wrong with the files a condition says.
	mostDamages = 3
)

// AuditDamaged is called when files of the audit are not as they were written. It does not block.
func (r *Reporter) AuditDamaged(text string) {
	r.auditor.mu.Lock()
	r.auditor.damaged = append(r.auditor.damaged, text)
	r.auditor.mu.Unlock()
	r.AuditLost() // It wakes RunAudit.
}

// RunAudit writes counted refusals, reports lost entries, watches over the files and keeps the newest line elsewhere, until ctx ends.
func (r *Reporter) RunAudit(ctx context.Context) {
	tick := time.NewTicker(countInterval)
	defer tick.Stop()
	var kept, verified time.Time
	file := uint64(0)
	for {
		r.reportDamage()
		if end, ok := r.syncAudit(ctx); ok {
			r.reportDamage() // The files were compared.
			now := r.Now()
			if file != end.File() || now.Sub(kept) >= anchorInterval {
				kept, file = now, end.File()
				r.keepPoint(end.Point())
			}
			if now.Sub(verified) >= verifyInterval {
				verified = now
				r.verifyOften(ctx)
			}
		}
		select {
		case <-tick.C:
			r.CountedNow(false)
		case <-r.lost:
		case <-ctx.Done():
			return
		}
		r.reportLost()
	}
}

// syncAudit waits until the audit is on the disk.
func (r *Reporter) syncAudit(ctx context.Context) (ledger.End, bool) {
	if r.Audits == nil {
		return ledger.End{}, false
	}
	end, err := r.Audits.Sync(ctx)
	return end, err == nil
}

// keepPoint keeps the newest line in the journal and in the state.
func (r *Reporter) keepPoint(m ledger.Point) {
	if m.Number == 0 {
		return
	}
	r.Log.Info("audit anchor", "message_id", MessageAuditAnchor, "number", m.Number, "sha256", m.Hash)
	r.auditor.mu.Lock()
	same := r.auditor.kept == m.Number
	r.auditor.kept = m.Number
	r.auditor.mu.Unlock()
	if same || r.SavePoint == nil {
		return
	}
	if err := r.SavePoint(m); err != nil {
		r.Log.Warn("cannot keep the newest line of the audit in the state", "error", err)
	}
}

// reportDamage makes what is wrong with the files a condition and lines of the audit. It stays until the daemon ends.
func (r *Reporter) reportDamage() {
	r.auditor.mu.Lock()
	news := r.auditor.damaged
	r.auditor.damaged = nil
	all := slices.Concat(r.auditor.damages, news)
	all = all[max(0, len(all)-mostDamages):]
	r.auditor.damages = all
	r.auditor.mu.Unlock()
	if len(news) == 0 {
		return
	}
	for _, text := range news {
		r.Log.Error("the audit was damaged", "message_id", MessageAuditDamaged, "text", text)
		r.Audit("gpushared", "audit", text)
	}
	r.Conditions.Set("audit", "files", strings.Join(all, "; "), verifyHint)
	r.Invalidate()
}

const verifyHint = "'gpushare audit --verify' says which lines are missing; the journal has what was done: 'journalctl -u gpushared'"

// verifyOften makes what a verification finds a condition.
func (r *Reporter) verifyOften(ctx context.Context) {
	v, err := r.Audits.Verify(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.Log.Warn("cannot verify the audit", "error", err)
		}
		return
	}
	first, n := unexplained(&v)
	if n == 0 {
		r.Conditions.Clear("audit", "lines")
		return
	}
	text := first.Reason
	if first.File != "" {
		text = fmt.Sprintf("%s: %s", first.File, text)
	}
	if n > 1 {
		text += fmt.Sprintf(" (the first of %d places)", n)
	}
	r.Conditions.Set("audit", "lines", "the audit is not as it was written: "+text, verifyHint)
	r.Invalidate()
}

// unexplained returns the first finding and the number of those that no loss of power explains. Of such a loss the start after it has
// written a line of the audit; in the files it stays for months.
func unexplained(v *ledger.Verification) (first *ledger.Finding, n uint64) {
	first, n = v.Broken, v.More
	for i := range slices.Backward(v.Findings) {
		if !v.Findings[i].Crash {
			first = &v.Findings[i]
			n++
		}
	}
	return first, n
}

// VerifyAudit verifies the chain of the audit, also against lines that are known from elsewhere.
func (r *Reporter) VerifyAudit(ctx context.Context, points []ledger.Point) (*api.AuditVerification, error) {
	if _, err := r.auditEnd(ctx); err != nil {
		return nil, err
	}
	v, err := r.Audits.Verify(ctx, points...)
	if err != nil {
		return nil, err
	}
	return v.Answer(), nil
}

// RevalidateAudit compares the file that is written with its name. If another program has removed it, the chain goes on in a new file,
// whose first line says so.
func (r *Reporter) RevalidateAudit(ctx context.Context) (lost []string, err error) {
	if r.Audits == nil {
		return nil, nil
	}
	n, present := r.Audits.Removals()
	if present && r.removals.Load() == n {
		return nil, nil
	}
	if _, ok := r.syncAudit(ctx); !ok {
		return []string{"the audit"}, errors.New("its writer does not answer")
	}
	n, _ = r.Audits.Removals()
	r.removals.Store(n)
	r.reportDamage()
	return []string{"the audit"}, nil
}
