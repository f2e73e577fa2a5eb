package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
)

// readyInterval is how often 'gpushare ready' reads the status, and readyTimeout how long it waits by default: a boot of eight GPUs
// with their layouts takes less than a minute.
const (
	readyInterval = 250 * time.Millisecond
	readyTimeout  = api.Duration(10 * time.Minute)
	readyHint     = "'gpushare status' and 'gpushare doctor' say more"
)

func (a *app) readyCommand() *cobra.Command {
	limit := new(readyTimeout)
	c := &cobra.Command{
		Use: "ready", Short: "Wait until the layouts that a boot removed are there again", Args: noArgs,
		Long: `Ready waits until the daemon runs, has compared the node with the spec, and has created the
layouts that a boot removed. It exits with 0 when no change is open, and every GPU of the spec
answers and none is held; and at once with 6 when a GPU is held: nothing changes that without
an administrator. A GPU that does not answer yet is waited for. It does not look at what another
program changed since: 'gpushare plan --exit-code' does. Without a spec, and with
'enforce: observe', there is nothing to wait for but the daemon.

A unit that needs MIG instances has After=gpushare-ready.target and Wants=gpushare-ready.target
(with Requires= it is not started when this command fails). Only root and administrators see
why a GPU is not ready.`,
		Example: "  gpushare ready\n  gpushare ready --timeout 2m && systemctl start jobs.service",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), waitLimit(limit))
			defer cancel()
			return a.awaitReady(ctx, limit)
		},
	}
	timeoutFlag(c, &limit, "wait until the node is ready")
	return c
}

// awaitReady reads the status until nothing is left to wait for.
func (a *app) awaitReady(ctx context.Context, limit *api.Duration) error {
	again := time.NewTicker(readyInterval)
	defer again.Stop()
	last := error(&api.Error{Kind: api.KindUnavailable, Message: "gpushared did not answer", Hint: readyHint})
	answered := false
	for {
		s, err := a.client.Status(ctx)
		e, refused := errors.AsType[*api.Error](err)
		switch {
		case err == nil:
			answered = true
			waits, held := unreadyGPUs(s)
			if len(held) > 0 {
				return &exitError{
					code: api.ExitDegraded,
					err: &api.Error{
						Kind:    api.KindDegraded,
						Message: "the node is not ready: " + strings.Join(held, "; "),
						Hint:    "'gpushare status' says what helps",
					},
				}
			}
			if waits == "" {
				return a.sayReady(s)
			}
			last = errors.New(waits)
		case refused && e.Kind != api.KindUnavailable:
			return err
		case ctx.Err() == nil:
			last = err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
			late := &api.Error{
				Kind:    api.KindDegraded,
				Message: fmt.Sprintf("the node is not ready after %s: %v", limit, last),
				Hint:    readyHint,
			}
			// A limit may be over before a connection is refused: the unit is asked all the same.
			if e, ok := errors.AsType[*api.Error](last); ok && (client.Unreached(last) || !answered) {
				why := installedUnit.explain(a.client.Socket, e)
				late.Message, late.Hint = fmt.Sprintf("the node is not ready after %s: %s", limit, why.Message), why.Hint
			}
			return &exitError{code: api.ExitDegraded, err: late}
		}
	}
}

func (a *app) sayReady(s *api.Status) error {
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int    `json:"schema_version"`
			Ready         bool   `json:"ready"`
			Generation    uint64 `json:"generation"`
		}{1, true, s.Node.Generation})
	}
	fmt.Fprintln(a.io.Out, "ready")
	return nil
}

// unreadyGPUs says what is waited for; empty when the node is ready. held are the GPUs that stay as they are.
func unreadyGPUs(s *api.Status) (waits string, held []string) {
	driver := slices.IndexFunc(s.Node.Conditions, func(c api.Condition) bool { return c.Kind == "driver" })
	switch {
	case s.Node.Starting && driver >= 0: // Nothing is compared before it is there.
		return s.Node.Conditions[driver].Message, nil
	case s.Node.Starting:
		return "the daemon has not compared the node with the spec yet", nil
	case s.Node.Operation != "":
		return s.Node.Operation + " runs", nil
	case s.Node.Enforce != "on":
		return "", nil
	case driver >= 0:
		return s.Node.Conditions[driver].Message, nil
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		about := slices.ContainsFunc(s.Node.Conditions, func(c api.Condition) bool { return c.GPU == g.UUID })
		switch {
		case g.Mode == api.ModeUnmanaged || g.Mode == api.ModeExternal:
		case g.State == "held":
			held = append(held, fmt.Sprintf("%s is %s", gpuName(g.Index, g.UUID), gpuState(g)))
		case g.State == "missing" && !about: // The spec does without it.
		case slices.Contains([]string{"changing", "lost", "stuck", "unreadable", "missing", "no-driver", "mismatch", "parked"}, g.State):
			waits = fmt.Sprintf("%s is %s", gpuName(g.Index, g.UUID), gpuState(g))
		}
	}
	return waits, held
}
