package mps

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
)

// reading is what a control daemon reports.
type reading struct {
	servers, clients []int
	drift            string // how its defaults differ from the settings
	fault            bool   // a server has a fatal fault
}

// read queries the defaults, the servers and their clients of a control daemon that greets, in at most two runs of the program.
func (s *Supervisor) read(ctx context.Context, l layout, rec *record) (reading, error) {
	c := control{program: s.Control, pipeDir: l.pipe()}
	o, err := c.overview(ctx)
	if err != nil {
		return reading{}, err
	}
	r := reading{servers: o.servers}
	if rec != nil {
		r.drift = o.drift(rec.Settings)
	}
	if len(o.servers) == 0 {
		return r, nil
	}
	var queries []string
	for _, server := range o.servers {
		queries = append(queries, serverQuery(server))
	}
	out, err := c.query(ctx, strings.Join(queries, "\n"))
	if err == nil {
		r.clients, r.fault, err = parseServers(out)
	}
	return r, err
}

func (c control) overview(ctx context.Context) (overview, error) {
	out, err := c.query(ctx, overviewQuery)
	if err != nil {
		return overview{}, err
	}
	return parseOverview(out)
}

// drift describes how the active defaults differ from the settings; empty: they do not.
func (o overview) drift(set Settings) string {
	switch {
	case set.Threads > 0 && math.Abs(o.threads-set.Threads) > 0.06: // the daemon prints one decimal
		return fmt.Sprintf("its default thread percentage is %s, it should be %s", percentText(o.threads), percentText(set.Threads))
	case set.Memory > 0 && o.memory != readBack(set.Memory):
		return fmt.Sprintf("its default memory limit reads back as %q, it should be %q", o.memory, readBack(set.Memory))
	}
	return ""
}

// apply sets the defaults and reads them back, because setting reports no errors.
func (c control) apply(ctx context.Context, set Settings) error {
	if set.Threads > 0 {
		if _, err := c.query(ctx, "set_default_active_thread_percentage "+percentText(set.Threads)); err != nil {
			return err
		}
	}
	if set.Memory > 0 {
		limit, err := FormatMemory(set.Memory, 0)
		if err != nil {
			return err
		}
		if _, err := c.query(ctx, "set_default_device_pinned_mem_limit 0 "+limit); err != nil {
			return err
		}
	}
	if set.Threads == 0 && set.Memory == 0 {
		return nil
	}
	o, err := c.overview(ctx)
	if err != nil {
		return err
	}
	if drift := o.drift(set); drift != "" {
		return errors.New(drift + " after it was set")
	}
	return nil
}
