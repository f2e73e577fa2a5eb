package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// forkRound is how often other programs start processes.
const forkRound = 10 * time.Millisecond

// forkOthers starts processes of no lease, so many a second. stop ends it, and fails if there were less than nine tenths of them:
// the machine was too slow for the figure.
func forkOthers(ctx context.Context, perSecond int) (stop func() error, err error) {
	each := perSecond * int(forkRound/time.Millisecond) / 1000
	cmd := exec.CommandContext(ctx, "sh", "-c",
		fmt.Sprintf("n=0; while read -r x; do i=0; while [ $i -lt %d ]; do (exit 0); i=$((i+1)); done; n=$((n+i)); done; echo $n", each))
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start processes: %w", err)
	}
	began, ending, ended := time.Now(), make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(forkRound)
		defer tick.Stop()
		for {
			select {
			case <-ending:
				ended <- in.Close()
				return
			case <-tick.C:
				_, _ = io.WriteString(in, "\n") // An end of the shell is reported by Wait.
			}
		}
	}()
	return func() error {
		close(ending)
		if err := errors.Join(<-ended, cmd.Wait()); err != nil {
			return fmt.Errorf("cannot start processes: %w", err)
		}
		var n int
		if _, err := fmt.Sscan(out.String(), &n); err != nil {
			return fmt.Errorf("cannot count the processes that were started: %w", err)
		}
		if rate := float64(n) / time.Since(began).Seconds(); rate < 0.9*float64(perSecond) {
			return fmt.Errorf("%.0f processes were started each second, not %d", rate, perSecond)
		}
		return nil
	}, nil
}
