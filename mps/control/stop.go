package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpushare/gpushare/mps"
)

// Stop stops MPS on a device. Clients that still run are terminated, which they see as CUDA error 810. The record of the device is
// kept until Forget.
func (s *Supervisor) Stop(ctx context.Context, id mps.Device) error {
	w := s.gpuState(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	unit, err := s.Units.ServiceState(ctx, mps.UnitName(id))
	if err == nil {
		err = s.shutDown(ctx, s.layout(id), unit)
	}
	w.read, w.missedGreetings, w.unitChecked, w.pid = time.Time{}, 0, false, 0
	if err != nil {
		return fmt.Errorf("cannot stop MPS on %s: %w", id, err)
	}
	return nil
}

// shutDown stops a control daemon in the order with the least damage: no new clients, clients terminated, servers ended, and
// then the unit with all its processes. A stage may fail or hang; the next one is stronger.
func (s *Supervisor) shutDown(ctx context.Context, l layout, unit mps.ServiceState) error {
	// Tenants must not join again meanwhile.
	if err := os.Remove(filepath.Join(l.tenant(), "control")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot close the tenants' MPS socket: %w", err)
	}
	if unit.Running {
		if err := s.quit(ctx, l); err != nil {
			s.Log.Warn("cannot quit the MPS control daemon; its unit is stopped", "dir", l.dir, "error", err)
		}
	}
	return s.Units.StopService(ctx, unitOf(l), stopTimeout)
}

func unitOf(l layout) string { return "gpushare-mps-" + filepath.Base(l.dir) + ".service" }

func (s *Supervisor) quit(ctx context.Context, l layout) error {
	c := client{program: s.Control, pipeDir: l.pipe()}
	o, err := c.overview(ctx)
	if err != nil {
		return err
	}
	for _, server := range o.Servers {
		out, err := c.query(ctx, fmt.Sprintf("get_client_list %d", server))
		if err != nil {
			return err
		}
		pids, err := mps.ParsePIDs(out)
		if err != nil {
			continue
		}
		for _, pid := range pids {
			// A client that is killed during a kernel can make the server hang for all clients; a terminated one cannot.
			if _, err := c.query(ctx, fmt.Sprintf("terminate_client %d %d", server, pid)); err != nil {
				return err
			}
		}
	}
	// Its exit code says that a server has failed at some time, not that quit failed.
	_, err = c.queryWithin(ctx, fmt.Sprintf("quit -t %d", int(quitTimeout/time.Second)), quitTimeout+quitMargin)
	return err
}
