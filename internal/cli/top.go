package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/top"
	"github.com/gpushare/gpushare/internal/top/screen"
)

// fastestTop bounds how often top reads the status.
const fastestTop = 500 * time.Millisecond

func (a *app) topCommand() *cobra.Command {
	var by string
	var batch bool
	var frames int
	every := new(api.Duration)
	*every = api.Duration(2 * time.Second)
	c := &cobra.Command{
		Use: "top", Short: "Watch GPUs, leases, tenants, users or processes", Args: noArgs,
		Long: `Top shows the GPUs, and below them leases, tenants, users or processes, and reads them again every
two seconds: how busy they are and were, memory, temperature, power and its limit, why clocks are
lowered, who uses them, also outside of leases, for how long leases are idle, and the conditions.

The keys l, g, t, u and p choose the table, s and r its order, / filters, k stops the chosen lease
after a question, ? explains, q ends it. A value that the driver does not report, as the utilisation of
a GPU in MIG mode, is '-'. It uses the whole terminal, and needs 60x12 characters.

With --batch it prints tables of GPUs, tenants or leases one after another, for scripts and files.`,
		Example: "  gpushare top\n  gpushare top --by gpu\n  gpushare top -b -n 1 --by tenant",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := topUsage(by, batch, frames, a.json); err != nil {
				return err
			}
			pause := max(time.Duration(*every), fastestTop)
			if batch {
				return a.topBatch(cmd.Context(), &topModel{by: cmp.Or(by, topGPUs), color: a.color}, frames, pause)
			}
			in, reads := a.terminalIn.(*os.File)
			out, writes := behind(a.io.Out).(*os.File)
			if !reads || !writes || !isTerminal(a.io.Out) || !term.IsTerminal(int(in.Fd())) {
				return usageError{err: errors.New("there is no terminal"), hint: "'gpushare top -b -n 1' prints one table"}
			}
			return a.topLive(cmd.Context(), in, out, cmp.Or(by, topLeases), frames, pause)
		},
	}
	f := c.Flags()
	f.StringVar(&by, "by", "", "the table: lease, gpu, tenant, user or process (default lease; with --batch gpu, and no user or process)")
	f.BoolVarP(&batch, "batch", "b", false, "print tables one after another, without a terminal")
	f.IntVarP(&frames, "count", "n", 0, "end after this many tables (default without end)")
	f.VarP(duration{&every}, "every", "d", "how often the values are read, 500ms or more")
	_ = c.RegisterFlagCompletionFunc(
		"by", cobra.FixedCompletions(topTables, cobra.ShellCompDirectiveNoFileComp),
	) // It fails only for a flag that does not exist.
	return c
}

// topTables are the tables of top on a terminal, and the first ones also those of --batch.
var topTables = []string{topGPUs, topTenants, topLeases, "user", "process"}

// topUsage checks the flags.
func topUsage(by string, batch bool, frames int, json bool) error {
	const batchTables = 3
	switch {
	case by != "" && !slices.Contains(topTables, by):
		return usageError{err: fmt.Errorf("--by %q is unknown", by), hint: "it is lease, gpu, tenant, user or process"}
	case batch && by != "" && !slices.Contains(topTables[:batchTables], by):
		return usageError{err: fmt.Errorf("--batch has no table of --by %s", by), hint: "it is gpu, tenant or lease"}
	case frames < 0:
		return usageError{err: errors.New("--count is 0 or more")}
	case json:
		return usageError{err: errors.New("top has no JSON"), hint: "'gpushare status --json' has the same values"}
	}
	return nil
}

// topBatch prints tables.
func (a *app) topBatch(ctx context.Context, m *topModel, frames int, pause time.Duration) error {
	for n := 1; ; n++ {
		s, err := a.client.StatusNow(ctx)
		if ctx.Err() != nil {
			return nil // It was to end by an interrupt.
		}
		if err != nil {
			return err
		}
		m.take(s)
		if n > 1 {
			fmt.Fprintln(a.io.Out)
		}
		fmt.Fprintln(a.io.Out, strings.Join(m.frame(columnsOf(a.io.Out)), "\n"))
		if n == frames || a.out.failed() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// topLive shows the node on the terminal until the user ends it.
func (a *app) topLive(ctx context.Context, in, out *os.File, view string, frames int, pause time.Duration) error {
	// Bars are characters of UTF-8, as in every table, whatever the locale: the library of the terminal asks for it.
	if err := os.Setenv("LC_ALL", "C.UTF-8"); err != nil {
		return fmt.Errorf("cannot use the terminal: %w", err)
	}
	err := screen.Run(ctx, &a.client, screen.Options{
		In: in, Out: out, Term: a.getenv("TERM"), Color: a.color, Every: pause, Count: frames, View: top.View(view), Zone: time.Local,
	})
	if ctx.Err() != nil {
		return nil // It was to end by an interrupt.
	}
	return err
}
