package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
)

// changePoll is the time between two attempts: a change that is only planned has no operation to wait for yet.
const changePoll = 200 * time.Millisecond

// afterOthers sends a request, and while another change is under way it waits for the end of that and sends the request again.
// limit nil: it does not wait; 0: as long as it takes.
func (a *app) afterOthers(ctx context.Context, limit *api.Duration, send func() error) error {
	waits, cancel := context.WithCancel(ctx)
	if limit != nil && *limit > 0 {
		waits, cancel = context.WithTimeout(ctx, time.Duration(*limit))
	}
	defer cancel()
	said, last, over := "", "", 0 // over: how often it was asked for the last operation after that had ended
	for {
		err := send()
		e, ok := errors.AsType[*api.Error](err)
		if !ok || limit == nil || e.Kind != api.KindConflict || e.Operation == "" && !e.Planning || ctx.Err() != nil {
			return err
		}
		if waits.Err() != nil {
			e.Message += fmt.Sprintf("; waited %s for it", *limit)
			return err
		}
		says := "waiting: another change is being planned"
		if e.Operation != "" {
			says = fmt.Sprintf("waiting for %s: another change is under way", printable(e.Operation))
		}
		if said != says {
			said = says
			fmt.Fprintln(a.io.Err, says)
		}
		if last != e.Operation {
			last, over = e.Operation, 0
		}
		if over > 1 { // Once: it may have ended after the refusal. A daemon that was restarted has resumed it, and it runs.
			e.Message += "; it has ended and is not finished, so waiting does not help"
			e.Hint = "it continues when the daemon is started again: 'systemctl restart gpushared'"
			return err
		}
		if a.waitForChange(waits, e.Operation) {
			over++
		} else {
			over = 0
		}
	}
}

// waitForChange waits until a change has ended, and a moment: one without an operation is being planned. It reports whether the change
// had ended before.
func (a *app) waitForChange(ctx context.Context, id string) (over bool) {
	if id != "" {
		op, err := a.client.Operation(ctx, id, 0, 0)
		over = err == nil && op.Finished != nil
		if err == nil {
			_, _ = a.client.Follow(ctx, op, func(*api.Operation) {}) // The next attempt says what is wrong.
		}
	}
	pause := time.NewTimer(changePoll)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return over
}
