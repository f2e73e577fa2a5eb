package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpushare/gpushare/api"
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
		Use: "top", Short: "Watch GPUs, tenants or leases", Args: noArgs,
		Long: `Top shows what the GPUs, tenants or leases are due and use, and the queue, and reads it again
every two seconds. The keys g, t and l choose the table, q ends it. A value that the driver does not
report, as the utilisation of a GPU in MIG mode, is '-'. With --batch it prints tables one after
another, for scripts and files.`,
		Example: "  gpushare top\n  gpushare top --by tenant\n  gpushare top -b -n 1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch by {
			case topGPUs, topTenants, topLeases:
			default:
				return usageError{err: fmt.Errorf("--by %q is unknown", by), hint: "it is gpu, tenant or lease"}
			}
			if frames < 0 {
				return usageError{err: errors.New("--count is 0 or more")}
			}
			if a.json {
				return usageError{err: errors.New("top has no JSON"), hint: "'gpushare status --json' has the same values"}
			}
			m := &topModel{by: by, color: a.color}
			pause := max(time.Duration(*every), fastestTop)
			if batch {
				return a.topBatch(cmd.Context(), m, frames, pause)
			}
			in, isFile := a.terminalIn.(*os.File)
			if !isTerminal(a.io.Out) || !isFile || !term.IsTerminal(int(in.Fd())) {
				return usageError{err: errors.New("there is no terminal"), hint: "'gpushare top -b -n 1' prints one table"}
			}
			return a.topLive(cmd.Context(), m, int(in.Fd()), frames, pause)
		},
	}
	f := c.Flags()
	f.StringVar(&by, "by", topGPUs, "the table: gpu, tenant or lease")
	f.BoolVarP(&batch, "batch", "b", false, "print tables one after another, without a terminal")
	f.IntVarP(&frames, "count", "n", 0, "end after this many tables (default without end)")
	f.VarP(duration{&every}, "every", "d", "how often the values are read, 500ms or more")
	_ = c.RegisterFlagCompletionFunc(
		"by", cobra.FixedCompletions([]string{topGPUs, topTenants, topLeases}, cobra.ShellCompDirectiveNoFileComp),
	) // It fails only for a flag that does not exist.
	return c
}

// topBatch prints tables.
func (a *app) topBatch(ctx context.Context, m *topModel, frames int, pause time.Duration) error {
	for n := 1; ; n++ {
		s, err := a.client.Status(ctx)
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
		fmt.Fprintln(a.io.Out, strings.Join(m.frame(columnsOf(a.io.Out), 0), "\n"))
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

// topLive shows tables on a terminal until q, and leaves it as it was.
func (a *app) topLive(ctx context.Context, m *topModel, in, frames int, pause time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	was, err := term.MakeRaw(in)
	if err != nil {
		return fmt.Errorf("cannot use the terminal: %w", err)
	}
	defer func() { _ = term.Restore(in, was) }() // There is no other way to restore it.
	screen := &screen{out: a.io.Out}
	screen.begin()
	defer screen.end()
	keys := make(chan byte)
	go func() { // A read that an interrupt leaves behind ends with the program.
		var b [1]byte
		for {
			if n, err := a.io.In.Read(b[:]); n == 0 || err != nil || ends(b[0]) { // Also while a reading of the status waits.
				cancel()
				return
			}
			select {
			case keys <- b[0]:
			case <-ctx.Done():
				return
			}
		}
	}()
	m.keys = true
	for n := 1; ; n++ {
		s, err := a.client.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			m.take(s)
		case m.status == nil || denied(err):
			return err // What a user may not see any more is not shown any longer either.
		default:
			m.failed = err.Error()
		}
		next := time.NewTimer(pause)
		for waits := true; waits; {
			width, height, err := term.GetSize(in)
			if err != nil {
				width, height = narrowest, 24
			}
			screen.show(m.frame(width, height))
			if n == frames || a.out.failed() != nil {
				next.Stop()
				return nil
			}
			select {
			case <-ctx.Done():
				next.Stop()
				return nil
			case <-next.C:
				waits = false
			case k := <-keys:
				m.press(k)
			}
		}
	}
}

// denied reports whether the daemon refused a request because of the role of the user.
func denied(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Kind == api.KindDenied
}

// ends reports whether a key ends top: q, or Ctrl-C and Ctrl-D, which are no signals here.
func ends(key byte) bool { return key == 'q' || key == 3 || key == 4 }

// press chooses the table of a key.
func (m *topModel) press(key byte) {
	switch key {
	case 'g':
		m.by = topGPUs
	case 't':
		m.by = topTenants
	case 'l':
		m.by = topLeases
	}
}

// screen writes only the lines that changed: a terminal behind a slow line is not drawn again.
type screen struct {
	out  io.Writer
	last []string
}

func (s *screen) begin() { fmt.Fprint(s.out, "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J") }
func (s *screen) end()   { fmt.Fprint(s.out, "\x1b[?7h\x1b[?25h\x1b[?1049l") }

func (s *screen) show(lines []string) {
	var b strings.Builder
	for i := range max(len(lines), len(s.last)) {
		switch {
		case i >= len(lines):
			fmt.Fprintf(&b, "\x1b[%d;1H\x1b[K", i+1)
		case i >= len(s.last) || lines[i] != s.last[i]:
			fmt.Fprintf(&b, "\x1b[%d;1H%s\x1b[K", i+1, lines[i])
		}
	}
	s.last = lines
	if b.Len() > 0 {
		fmt.Fprint(s.out, b.String())
	}
}
