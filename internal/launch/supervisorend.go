package launch

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

const (
	// recordInterval is the time between two readings of a record whose result is about to be written.
	recordInterval = 10 * time.Millisecond
	// supervisorEndTimeout is how long a supervisor may write the rest of the output after its lease has ended.
	supervisorEndTimeout = 2 * time.Second
)

// Result returns how the program ended, after all its output was written. It is called when the lease has ended, and ends the
// supervisor if that does not end by itself. ErrUnknown: its supervisor was killed, and the result is not known.
func (k *Supervisors) Result(ctx context.Context, id string) (Result, error) {
	r, err := k.record(id)
	if err != nil {
		return Result{}, err
	}
	waited := k.awaitResult(ctx, id, r)
	if err := endSupervisor(context.WithoutCancel(ctx), r.Supervisor); err != nil {
		return Result{}, fmt.Errorf("cannot end the supervisor process of %s: %w", id, err)
	}
	// The supervisor may have written the result after the last reading.
	if r, err = k.record(id); err != nil {
		return Result{}, err
	}
	switch {
	case r.Result != nil:
		return *r.Result, nil
	case waited != nil:
		return Result{}, fmt.Errorf("cannot read how %s ended: %w", id, waited)
	}
	return Result{}, ErrUnknown
}

// awaitResult returns when the record has a result, or nothing can write one any more.
func (k *Supervisors) awaitResult(ctx context.Context, id string, r *record) error {
	again := time.NewTicker(recordInterval)
	defer again.Stop()
	for r.Result == nil && procfs.Alive(r.Supervisor.PID, r.Supervisor.Start) {
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("its supervisor process still runs: %w", ctx.Err())
		}
		now, err := k.record(id)
		if err != nil {
			return err
		}
		r = now
	}
	return nil
}

// endSupervisor sends SIGTERM to a supervisor whose result is recorded, because the lease has ended, and kills it when it does not end
// then. It waits for nothing but its files, unless something keeps it.
func endSupervisor(ctx context.Context, p Process) error {
	supervisor, err := procfs.OpenPidfd(p.PID, p.Start)
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	defer supervisor.Close()
	kill := func(ctx context.Context) error { return supervisor.Signal(ctx, unix.SIGKILL) }
	for _, send := range []func(context.Context) error{supervisor.Terminate, kill} {
		if err := send(ctx); err != nil {
			return nil //nolint:nilerr // it has ended
		}
		waiting, cancel := context.WithTimeout(ctx, supervisorEndTimeout)
		err = supervisor.Wait(waiting)
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

// Finish ends the supervisors of leases that have ended, all at once: the daemon was killed meanwhile, or was a version whose
// supervisors wait for all who hold the output.
func (k *Supervisors) Finish(ctx context.Context, ended func(id string) bool) {
	entries, _, err := boundedread.Entries(k.Dir, boundedread.Files)
	if err != nil {
		return // There is no directory.
	}
	var all sync.WaitGroup
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !ended(id) {
			continue
		}
		r, err := k.record(id)
		if err != nil || !procfs.Alive(r.Supervisor.PID, r.Supervisor.Start) {
			continue
		}
		all.Go(func() { _, _ = k.Result(ctx, id) }) // The result is read again when its lease ends.
	}
	all.Wait()
}
