package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/text"
)

func (a *app) auditCommand() *cobra.Command {
	var f client.AuditFilter
	var verify bool
	c := &cobra.Command{
		Use: "audit [flags]", Short: "Show who changed what, and what was refused", Args: noArgs,
		Long: `Audit prints one line for each action, the oldest first: who, with which role, uid and pid,
what, and the generation of the spec afterwards. Refusals are in it too; wrong requests and
refused reads are counted, in one line for each user and minute. Only administrators may
read it. With --verify it follows the chain of hashes over all lines instead, and exits
with 6 at the first line that was changed, removed or added.`,
		Example: "  gpushare audit --since 1d\n  gpushare audit --user alice --json | jq -r 'select(.kind) | .message'\n  gpushare audit --verify",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if verify {
				return a.verifyAudit(cmd)
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
	c.Flags().StringVar(&f.Since, "since", "", "begin: 1m to 435d ago, as in 36h or 7d, or a date as in 2026-02-01 (default all)")
	c.Flags().StringVar(&f.Until, "until", "", "end, in the same form (default now)")
	c.Flags().StringVar(&f.User, "user", "", "only this user, by name or uid")
	c.Flags().StringVarP(&f.Tenant, "tenant", "t", "", "only this tenant")
	c.Flags().BoolVar(&verify, "verify", false, "follow the chain of hashes")
	return c
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
	fmt.Fprintf(a.io.Out, "%s  %s  %-10s %-20s %s  generation %d  %s\n",
		l.At.Local().Format(time.DateTime), printable(who), printable(l.What), printable(dash(about)), printable(done), l.Generation, printable(message))
}

func (a *app) verifyAudit(cmd *cobra.Command) error {
	v, err := a.client.VerifyAudit(cmd.Context())
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

func (a *app) auditVerification(v *api.AuditVerification) {
	if b := v.Broken; b != nil {
		fmt.Fprintf(a.io.Out, "%s: %s, line %d: %s\n", a.state("broken"), printable(b.File), b.Line, printable(b.Message))
	} else {
		fmt.Fprintf(a.io.Out, "%s: every line follows the one before it\n", a.verdict("ok"))
	}
	fmt.Fprintf(a.io.Out, "lines %d to %d; the hash of the last is %s\n", v.First, v.Last, v.SHA256)
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
