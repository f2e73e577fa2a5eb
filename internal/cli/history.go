package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

func (a *app) historyCommand() *cobra.Command {
	var whole bool
	c := &cobra.Command{
		Use: "history [GENERATION]", Short: "Show the specs that were in force: who applied them, when, and what changed",
		Long: `History lists the last 20 accepted specs, the newest last, with what each changed. With a
generation it shows what that one changed, line by line, or with --yaml the spec itself.
'gpushare rollback' puts one of them in force again.`,
		Example:           "  gpushare history\n  gpushare history 7\n  gpushare history 7 --yaml > node.yaml",
		Args:              atMostOneGeneration,
		ValidArgsFunction: a.completeGenerations,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if whole {
					return usageError{err: fmt.Errorf("--yaml needs a generation"), hint: "'gpushare get' prints the spec in force"}
				}
				return a.listHistory(cmd)
			}
			return a.showRevision(cmd, args[0], whole)
		},
	}
	c.Flags().BoolVar(&whole, "yaml", false, "print the spec instead of what it changed")
	return c
}

// atMostOneGeneration takes nothing or a generation.
func atMostOneGeneration(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) > 1:
		return usageError{err: fmt.Errorf("'%s' takes one generation, got %d", cmd.CommandPath(), len(args))}
	case len(args) == 1:
		if n, err := strconv.ParseUint(args[0], 10, 64); err != nil || n == 0 {
			return usageError{err: fmt.Errorf("%q is no generation", args[0]), hint: "'gpushare history' lists them"}
		}
	}
	return nil
}

// completeGenerations offers the generations that are kept.
func (a *app) completeGenerations(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if len(args) == 0 {
		if h, err := a.client.History(cmd.Context()); err == nil {
			for _, r := range h.Revisions {
				if word := strconv.FormatUint(r.Generation, 10); strings.HasPrefix(word, typed) {
					out = append(out, word+"\t"+describe(revisionText(&r)))
				}
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) listHistory(cmd *cobra.Command) error {
	h, err := a.client.History(cmd.Context())
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(h)
	}
	if len(h.Revisions) == 0 {
		fmt.Fprintln(a.io.Out, "no spec was applied yet")
		return nil
	}
	columns := []column{{head: "GENERATION"}, {head: "WHEN"}, {head: "BY", min: 8}, {head: "CHANGED", min: 20}}
	var rows []line
	for i := range h.Revisions {
		r := &h.Revisions[i]
		generation := strconv.FormatUint(r.Generation, 10)
		if r.InForce {
			generation += " *"
		}
		rows = append(rows, line{cells: []string{generation, r.At.Local().Format(time.DateTime), r.By, revisionText(r)}})
	}
	a.fit(columnsOf(a.io.Out), columns, rows)
	return nil
}

// revisionText is what a revision changed, in one line.
func revisionText(r *api.SpecRevision) string {
	text := strings.Join(r.Changes, "; ")
	switch {
	case r.Unmanaged == "all":
		text = "unmanaged the node, with its GPUs"
	case r.Unmanaged != "":
		text = strings.TrimSuffix("unmanaged the node; "+text, "; ")
	case text == "" && r.Changes == nil:
		text = "-"
	case text == "":
		text = "nothing"
	}
	return text
}

// revisionHead says which spec it is.
func revisionHead(doc *api.SpecDocument) string {
	return fmt.Sprintf("generation %d, by %s, %s", doc.Generation, printable(doc.By), doc.At.Local().Format(time.DateTime))
}

// showRevision prints a spec, or how it differs from the one before it.
func (a *app) showRevision(cmd *cobra.Command, generation string, whole bool) error {
	doc, err := a.client.Revision(cmd.Context(), generation)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int `json:"schema_version"`
			*api.SpecDocument
		}{1, doc})
	}
	if whole {
		fmt.Fprint(a.io.Out, doc.YAML)
		return nil
	}
	was, err := a.client.Revision(cmd.Context(), strconv.FormatUint(doc.Generation-1, 10))
	if err != nil && !isNotFound(err) {
		return err
	}
	fmt.Fprintln(a.io.Out, revisionHead(doc))
	if err != nil {
		fmt.Fprintln(a.io.Out, "no spec before it is kept; this is all of it:")
		fmt.Fprint(a.io.Out, doc.YAML)
		return nil
	}
	a.diff(&api.Diff{Before: was.YAML, After: doc.YAML})
	return nil
}
