package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/test/harness"
)

// throughFront measures gpushare run of a member, whose requests gpushare-front reads, next to the same run of root, whose requests the
// daemon reads itself. Both take turns, with the pace of a user who is not one of many requests.
func (b *bench) throughFront(ctx context.Context) (figures []Figure, failed error) {
	if os.Geteuid() != 0 {
		return b.skip("gpushare run of a member", "root, to become another user")
	}
	dir, ok := inMemory()
	if !ok {
		var err error
		if dir, err = os.MkdirTemp("", "gpushare-bench-"); err != nil {
			return nil, fmt.Errorf("cannot create a directory: %w", err)
		}
	}
	defer os.RemoveAll(dir)
	if _, err := floodFiles(dir); err != nil {
		return nil, err
	}
	n := &harness.Node{
		Bin:      b.bin,
		File:     filepath.Join(dir, "node.yaml"),
		Settings: map[string]string{"getent": filepath.Join(dir, "getent")},
	}
	defer n.Close()
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	if r := n.CLIIn(ctx, floodSpec, "apply", "-f", "-"); r.Code != 0 {
		return nil, fmt.Errorf("cannot apply the spec: %s", r.Err)
	}
	var root, member []float64
	for range floodRuns {
		for _, who := range []struct {
			uid, gid int
			into     *[]float64
		}{{0, 0, &root}, {otherUser, gidBlue, &member}} {
			d, err := runAs(ctx, n, who.uid, who.gid)
			if err != nil {
				return nil, err
			}
			*who.into = append(*who.into, d)
			if !loop.Pause(ctx, pauseOfRuns) { // the pace of the user, and no wait for something
				return nil, ctx.Err()
			}
		}
	}
	const name = "gpushare run to exec on a shared GPU, without systemd, with pauses, "
	for _, f := range []struct {
		who string
		all []float64
	}{{"root, read by the daemon", root}, {"a member, read by gpushare-front", member}} {
		figures = append(
			figures, figure(name+f.who+": minimum", []float64{slices.Min(f.all)}, "ms", "lower", nil),
			figure(name+f.who+": median", []float64{median(f.all)}, "ms", "lower", nil),
		)
	}
	return figures, nil
}

// runAs returns how many milliseconds after the start of gpushare run of that user its command printed the time.
func runAs(ctx context.Context, n *harness.Node, uid, gid int) (float64, error) {
	cmd := as(ctx, uid, gid, filepath.Join(n.Bin, "gpushare"), "run", "-q", "-t", "blue", "--wait=30s", "--", "date", "+%s%N")
	cmd.Env, cmd.SysProcAttr.Setsid = n.Environ(), true
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("gpushare run of uid %d: %w: %s", uid, err, out)
	}
	ran, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("gpushare run of uid %d printed %q, and no time", uid, out)
	}
	return float64(time.Unix(0, ran).Sub(began).Microseconds()) / 1000, nil
}
