package main

import (
	"context"
	"fmt"
	"time"
)

// applies measures how long the command line applies the spec in force, and one that changes a limit of each tenant. The node has its
// leases meanwhile.
func (s *site) applies(ctx context.Context, n *node) error {
	var same, changed []time.Duration
	rounds := max(1, s.readings/5)
	for i := range rounds {
		for _, again := range []bool{false, true} {
			begin := time.Now()
			r := n.CLIIn(ctx, spec(2000+i), "apply", "-f", "-")
			elapsed := time.Since(begin)
			if r.Code != 0 {
				return fmt.Errorf("cannot apply: exit code %d: %s%s", r.Code, r.Out, r.Err)
			}
			if again {
				same = append(same, elapsed)
			} else {
				changed = append(changed, elapsed)
			}
		}
	}
	a, b := middle(same)
	c, d := middle(changed)
	fmt.Fprintf(
		s.out,
		"\nAn apply on the node with %d leases: without a change median %s, longest %s; a limit of %d tenants changed median %s, longest %s\n",
		len(n.leases),
		a.Round(time.Millisecond),
		b.Round(time.Millisecond),
		tenants,
		c.Round(time.Millisecond),
		d.Round(time.Millisecond),
	)
	return nil
}
