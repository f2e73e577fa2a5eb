package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/ledger"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) auditCommand() *cobra.Command {
	var f client.AuditFilter
	var v verification
	c := &cobra.Command{
		Use:   "audit [flags]",
		Short: "Show who changed what, and what was refused",
		Args:  noArgs,
		Long: `Audit prints one line for each action, the oldest first: who, with which role, uid and pid,
what, and the generation of the spec afterwards. Refusals are in it too; wrong requests and
refused reads are counted, in one line for each user and minute. Only administrators may
read it. With --verify it follows the chain of hashes over all lines instead, and exits
with 6 if lines were changed, removed or added, with the place, the numbers and the times.
The daemon knows the oldest and the newest line, and writes the newest into the journal each
hour: --anchor compares such a line of the journal, as another host has it. --state-dir
verifies the files without the daemon, also a copy of them.`,
		Example: "  gpushare audit --since 1d\n  gpushare audit --user alice --json | jq -r 'select(.kind) | .message'\n  gpushare audit --verify\n  gpushare audit --verify --state-dir /var/lib/gpushare",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if v.verify {
				return a.verifyAudit(cmd.Context(), &v)
			}
			if len(v.anchors) > 0 || v.stateDir != "" {
				return usageError{err: errors.New("cannot compare an anchor or verify files without --verify")}
			}
			out := json.NewEncoder(a.io.Out)
			return a.client.Audit(cmd.Context(), f, func(l api.AuditLine) {
				if a.json {
					_ = out.Encode(l) // A closed standard output ends the process by SIGPIPE.
					return
				}
				a.auditLine(&l)
			})
		},
	}
	c.Flags().StringVar(&f.Since, "since", "", "begin: 1m to 435d ago, as in 36h or 7d, or a date (UTC) as in 2026-02-01 (default all)")
	c.Flags().StringVar(&f.Until, "until", "", "end, in the same form (default now)")
	c.Flags().StringVar(&f.User, "user", "", "only this user, by name or uid")
	c.Flags().StringVarP(&f.Tenant, "tenant", "t", "", "only this tenant")
	c.Flags().BoolVar(&v.verify, "verify", false, "follow the chain of hashes")
	c.Flags().StringArrayVar(&v.anchors, "anchor", nil, "compare a line that is known from elsewhere, as a `NUMBER:SHA256` of the journal")
	c.Flags().StringVar(&v.stateDir, "state-dir", "", "verify the files of this state directory, without the daemon")
	return c
}

// verification is what is verified.
type verification struct {
	verify   bool
	anchors  []string
	stateDir string // empty: the daemon's
}

func (a *app) auditLine(l *api.AuditLine) {
	if l.Lost > 0 {
		fmt.Fprintf(a.io.Out, "%s could not be written here\n", text.Count(int(min(l.Lost, 1<<31)), "line"))
	}
	who := l.By
	if l.UID >= 0 {
		who = fmt.Sprintf("%s (%s, uid %d", l.By, dash(l.Role), l.UID)
		if l.PID > 0 {
			who += fmt.Sprintf(", pid %d", l.PID)
		}
		if l.LoginUID != nil && int64(*l.LoginUID) != int64(l.UID) {
			who += fmt.Sprintf(", login uid %d", *l.LoginUID)
		}
		who += ")"
	}
	about := l.Lease
	if about == "" {
		about = shortUUID(l.GPU)
	}
	if about == "" {
		about = l.Tenant
	}
	done := "done"
	if l.Kind != "" {
		done = "refused: " + string(l.Kind)
	}
	message := l.Message
	if l.Command != "" {
		message += ": " + l.Command
	}
	fmt.Fprintf(
		a.io.Out, "%s  %s  %-10s %-20s %s  generation %d  %s\n", l.At.Local().Format(time.DateTime), printable(who), printable(l.What),
		printable(dash(about)), printable(done), l.Generation, printable(message),
	)
}

func (a *app) verifyAudit(ctx context.Context, what *verification) error {
	v, err := a.verification(ctx, what)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(v); err != nil {
			return err
		}
	} else {
		a.auditVerification(v)
	}
	if v.Broken != nil {
		return &exitError{code: api.ExitDegraded}
	}
	return nil
}

// verification asks the daemon, or reads the files.
func (a *app) verification(ctx context.Context, what *verification) (*api.AuditVerification, error) {
	var points []ledger.Point
	for _, s := range what.anchors {
		m, err := ledger.ParsePoint(s)
		if err != nil {
			return nil, usageError{err: err}
		}
		points = append(points, m)
	}
	if what.stateDir == "" {
		return a.client.VerifyAudit(ctx, what.anchors...)
	}
	known := ledger.Point{}
	switch s, err := store.Peek(what.stateDir); {
	case errors.Is(err, fs.ErrPermission):
		return nil, &api.Error{Kind: api.KindDenied, Message: err.Error(), Hint: "only root may read it"}
	case errors.Is(err, fs.ErrNotExist): // A copy of the audit alone has no state.
	case err != nil:
		fmt.Fprintf(a.io.Err, "gpushare: %s: it is not compared\n", err)
	case s.Audit != nil:
		known = ledger.Point{Number: s.Audit.Number, Hash: s.Audit.SHA256, At: s.Audit.At}
	}
	boot, _ := procfs.BootID("/") // Without it a loss of power may explain more.
	end, err := ledger.AtRest(filepath.Join(what.stateDir, ledger.AuditAnchor), known, boot)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(what.stateDir, "audit")
	if _, err := os.Stat(dir); err != nil && known.Number == 0 && end.Point().Number == 0 {
		return nil, fmt.Errorf("cannot verify the audit: %w", err)
	}
	v, err := ledger.Verify(dir, "audit", end, points...)
	if err != nil {
		return nil, err
	}
	return v.Answer(), nil
}

func (a *app) auditVerification(v *api.AuditVerification) {
	found := v.Findings
	if b := v.Broken; b != nil && len(found) == 0 { // The daemon is older.
		found = []api.AuditFinding{{File: b.File, Line: b.Line, Message: b.Message}}
	}
	for i := range found {
		a.auditFinding(&found[i])
	}
	if v.MoreFindings > 0 {
		fmt.Fprintf(a.io.Out, "%s more\n", text.Count(int(min(v.MoreFindings, 1<<31)), "place"))
	}
	switch {
	case len(found) == 0 && v.Last == 0 && v.Anchored && v.Older+v.Lost == 0:
		fmt.Fprintf(a.io.Out, "%s: there is no line yet\n", a.verdict("ok"))
		return
	case len(found) == 0:
		fmt.Fprintf(a.io.Out, "%s: every line follows the one before it\n", a.verdict("ok"))
	}
	fmt.Fprintf(a.io.Out, "lines %d to %d; the hash of the last is %s\n", v.First, v.Last, dash(v.SHA256))
	switch {
	case !v.Anchored:
		fmt.Fprintln(a.io.Out, "whether lines were removed at the begin or the end is not known: there is no anchor")
	case v.AnchoredSince > 0 && v.First <= v.AnchoredSince:
		fmt.Fprintf(
			a.io.Out,
			"before line %d nothing was known outside of the files: whether lines were removed at the begin before that is not known\n",
			v.AnchoredSince,
		)
	}
	for _, c := range []struct {
		count uint64
		what  string
	}{
		{v.Older, "older, without a chain"},
		{v.Incomplete, "incomplete after a kill or a power cut: no attack"},
		{v.Lost, "lost: they could not be written"},
	} {
		if c.count > 0 {
			fmt.Fprintf(a.io.Out, "%s %s\n", text.Count(int(min(c.count, 1<<31)), "line"), c.what)
		}
	}
}

func (a *app) auditFinding(f *api.AuditFinding) {
	var where string
	switch {
	case f.File != "" && f.Line > 0:
		where = fmt.Sprintf("%s, line %d: ", f.File, f.Line)
	case f.File != "":
		where = f.File + ": "
	}
	fmt.Fprintf(a.io.Out, "%s: %s\n", a.state("broken"), printable(where+f.Message))
	if f.First == 0 {
		return
	}
	lines := fmt.Sprintf("line %d is not there, written", f.First)
	if f.Last > f.First {
		lines = fmt.Sprintf("lines %d to %d are not there, written", f.First, f.Last)
	}
	after, until := f.After.Local().Format(time.DateTime), f.Before.Local().Format(time.DateTime)
	switch {
	case !f.After.IsZero() && !f.Before.IsZero():
		fmt.Fprintf(a.io.Out, "  %s between %s and %s\n", lines, after, until)
	case !f.After.IsZero():
		fmt.Fprintf(a.io.Out, "  %s after %s\n", lines, after)
	case !f.Before.IsZero():
		fmt.Fprintf(a.io.Out, "  %s until %s\n", lines, until)
	default:
		fmt.Fprintf(a.io.Out, "  %s at an unknown time\n", lines)
	}
}
