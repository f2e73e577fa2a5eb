package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/lease"
)

// maxLines is how many last lines a reader can ask for: each takes memory while they are searched.
const maxLines = 10_000

// GetLogs copies the output of a detached command.
func (ls *Leases) GetLogs(c *server.Call) error {
	id := c.R.PathValue("id")
	l, live := ls.Table.Get(id)
	if !live {
		e, ok := ls.Ended.get(id)
		if !ok {
			return ls.noLogs(id)
		}
		l = e.Lease
	}
	may := func(now *server.Caller) error { return ls.mayReadOutput(now, &l) }
	if err := may(c.Caller); err != nil {
		return err
	}
	if l.Origin != lease.OriginDetached {
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "there is no output of lease " + id + " here: its command prints to where it was started",
			Hint:    "the output of 'gpushare run --detach' is kept",
		}
	}
	lines := -1
	if s := c.Text("lines"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > maxLines {
			return &api.Error{
				Kind:    api.KindInvalid,
				Message: fmt.Sprintf("cannot show %.64q lines: write a number from 0 to %d", s, maxLines),
				Hint:    "without a number all output is shown",
			}
		}
		lines = n
	}
	reading, stop := c.While(may)
	defer stop()
	var ended chan struct{}
	if c.Flag("follow") {
		ended = make(chan struct{})
		ctx, cancel := context.WithCancel(reading)
		defer func() {
			cancel()
			<-ended
		}()
		go func() { // ends with the lease or with this call, which waits for it
			defer close(ended)
			ls.awaitEnded(ctx, &l)
		}()
	}
	c.W.Header().Set("Content-Type", "text/plain; charset=utf-8")
	err := ls.Detached.Outputs.Output(
		reading, &l, lines, ended, &flushing{c.W, func() error { return cmp.Or(server.Lost(reading), may(c.Now())) }},
	)
	if lost := cmp.Or(server.Lost(reading), may(c.Now())); lost != nil {
		c.SendLost(lost)
		return nil
	}
	if errors.Is(err, launch.ErrUnknown) {
		return nil // It printed nothing, or its output was dropped.
	}
	if err != nil && c.Ctx().Err() == nil {
		ls.Log.Warn("cannot copy a lease's output", "lease", id, "error", err)
		panic(http.ErrAbortHandler) // The output is not complete: the reader must see that.
	}
	return nil
}

// mayReadOutput returns why a caller may not read the output of a lease. Its user always may.
func (ls *Leases) mayReadOutput(c *server.Caller, l *lease.Lease) error {
	switch {
	case c.Admin || c.UID == l.UID:
		return nil
	case !c.IsMember(l.Terms.Tenant):
		return ls.noLogs(l.ID)
	}
	return &api.Error{
		Kind:    api.KindDenied,
		Message: fmt.Sprintf("%s may not read the output of lease %s of user %s", c.Name, l.ID, l.User),
		Hint:    "its user or an administrator may",
	}
}

func (ls *Leases) noLogs(id string) error {
	return &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("there is no lease %q whose output you may read", id),
		Hint:    "see 'gpushare lease list --all'",
	}
}

// awaitEnded waits until the lease has ended.
func (ls *Leases) awaitEnded(ctx context.Context, l *lease.Lease) {
	for {
		next := ls.LeaseChanges.Next()
		if now, ok := ls.Table.Get(l.ID); !ok || now.Generation != l.Generation {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// flushing writes each part at once.
type flushing struct {
	w   http.ResponseWriter
	may func() error // whether the reader still may
}

// Write writes and flushes.
func (f *flushing) Write(b []byte) (int, error) {
	if err := f.may(); err != nil {
		return 0, err
	}
	server.StartPart(f.w)
	n, err := f.w.Write(b)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}
