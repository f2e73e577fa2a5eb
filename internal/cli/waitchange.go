package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
)

// changePoll is the time between two attempts while another change is planned: it has no operation to wait for yet.
const changePoll = 200 * time.Millisecond

// afterOthers sends a request, and while another change is under way it waits for the end of that and sends the request again.
// limit nil: it does not wait; 0: as long as it takes.
func (a *app) afterOthers(ctx context.Context, limit *api.Duration, send func() error) error {
	waits, cancel := context.WithCancel(ctx)
	if limit != nil && *limit > 0 {
		waits, cancel = context.WithTimeout(ctx, time.Duration(*limit))
	}
	defer cancel()
	said := ""
	for {
		err := send()
		e, ok := errors.AsType[*api.Error](err)
		if !ok || limit == nil || e.Kind != api.KindConflict || e.Operation == "" || ctx.Err() != nil {
			return err
		}
		if waits.Err() != nil {
			e.Message += fmt.Sprintf("; waited %s for it", *limit)
			return err
		}
		if said != e.Operation {
			said = e.Operation
			fmt.Fprintf(a.io.Err, "waiting for %s: another change is under way\n", printable(e.Operation))
		}
		a.waitForChange(waits, e.Operation)
	}
}

// waitForChange waits until a change has ended; one without an operation is being planned, or has ended, and gets a moment.
func (a *app) waitForChange(ctx context.Context, id string) {
	op, err := a.client.Operation(ctx, id, 0, 0)
	if err == nil {
		_, err = a.client.Follow(ctx, op, func(*api.Operation) {})
	}
	if err == nil {
		return
	}
	pause := time.NewTimer(changePoll)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}
