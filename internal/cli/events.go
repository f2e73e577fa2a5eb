package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

// collectFor is how long equal events are counted before their number is printed.
const collectFor = time.Second

func (a *app) eventsCommand() *cobra.Command {
	var since, until string
	c := &cobra.Command{
		Use:   "events",
		Short: "Follow the events of the node",
		Args:  noArgs,
		Long: `Events prints one line for each event from now on, until it is interrupted. Equal events that
follow each other are one line and their number. With --json each is an object on its line.

With --since or --until it prints what the daemon keeps instead: about the last thousand events
since it started, of each tenant the newest. The journal and 'gpushare audit' have what is older.`,
		Example: "  gpushare events\n  gpushare events --since 2h\n  gpushare events --json | jq -r 'select(.kind == \"gpu.held\") | .message'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			at := time.TimeOnly
			if since != "" || until != "" {
				at = time.DateTime // What is kept may be of several days.
			}
			r := repeats{print: func(e *api.Event, times int) { a.eventLine(e, at, times) }}
			add, flush := r.add, r.flush
			if a.json {
				out := json.NewEncoder(a.io.Out)
				add, flush = func(e *api.Event) { _ = out.Encode(e) }, func() {} // The output keeps its error.
			}
			if since == "" && until == "" {
				return a.eachEvent(cmd.Context(), add, flush)
			}
			err := a.client.EventsBetween(cmd.Context(), since, until, func(e api.Event) { add(&e) })
			flush()
			return err
		},
	}
	c.Flags().StringVar(&since, "since", "", "list from then on: 1m to 435d ago, as in 36h or 7d, or a date (UTC) as in 2026-02-01")
	c.Flags().StringVar(&until, "until", "", "list until then, in the same form (default now)")
	return c
}

// eachEvent calls f with every event, and flush when there was none for a while and at the end. It ends when nothing can be
// written any more.
func (a *app) eachEvent(ctx context.Context, f func(*api.Event), flush func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, ended := make(chan api.Event), make(chan error, 1)
	go func() { // ends with ctx
		ended <- a.client.Events(ctx, func(e api.Event) {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		})
	}()
	pause := time.NewTimer(collectFor)
	defer pause.Stop()
	for a.out.failed() == nil {
		select {
		case e := <-events:
			f(&e)
			pause.Reset(collectFor)
		case <-pause.C:
			flush()
		case err := <-ended:
			flush()
			return err
		}
	}
	return nil // The error of the output is that of the command.
}

// repeats collapses equal events that follow each other: the first is printed at once, the others when another event comes
// or no more of them do.
type repeats struct {
	print func(e *api.Event, times int) // times: of equal events that were not printed
	last  *api.Event
	more  int // events that are equal to last and not printed
}

func (r *repeats) add(e *api.Event) {
	if l := r.last; l != nil && l.Kind == e.Kind && l.GPU == e.GPU && l.Tenant == e.Tenant && l.Lease == e.Lease && l.Message == e.Message {
		r.last = e
		r.more++
		return
	}
	r.flush()
	r.last = e
	r.print(e, 1)
}

// flush prints what was kept back. The next event is printed at once.
func (r *repeats) flush() {
	if r.more > 0 {
		r.print(r.last, r.more)
	}
	r.last, r.more = nil, 0
}

// eventLine prints an event, which stands for several, with its time in a layout.
func (a *app) eventLine(e *api.Event, at string, times int) {
	where := e.Lease
	if where == "" {
		where = shortUUID(e.GPU)
	}
	if where == "" {
		where = e.Tenant
	}
	message := printable(e.Message)
	if times > 1 {
		message += fmt.Sprintf(" (%d more)", times)
	}
	fmt.Fprintf(a.io.Out, "%s  %-16s %-20s %s\n", e.At.Local().Format(at), printable(e.Kind), printable(dash(where)), message)
}
