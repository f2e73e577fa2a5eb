package metrics

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/gpu/worker"
	"github.com/gpushare/gpushare/internal/version"
)

// ContentType is that of the text format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Exporter answers scrapes.
type Exporter struct {
	*report.Reporter
	// Status is what a caller may read of the node, from memory.
	Status interface {
		StatusFor(c *server.Caller) *api.Status
		IdleFor(c *server.Caller) *api.Idle
	}
	Worker interface{ Stats() worker.Stats }
	Totals *Totals
}

// Text returns the metrics that a caller may read: of the same tenants, GPUs and users as in the status.
func (e *Exporter) Text(c *server.Caller) ([]byte, error) {
	s := &Snapshot{
		Version: version.Version,
		Status:  e.Status.StatusFor(c),
		Usage:   e.Totals.list(c.Sees),
		Uses:    e.Status.IdleFor(c).Uses,
	}
	if c.Admin || c.Observer {
		w := e.Worker.Stats()
		a := &Activity{
			Converges:    e.Counters.Converges.Load(),
			Drifts:       e.Counters.Drifts.Load(),
			Steps:        e.Counters.Steps.Load(),
			Freezes:      e.Counters.Freezes.Load(),
			Messages:     w.Messages,
			Writes:       w.Writes,
			Timeouts:     w.Timeouts,
			WorkerStarts: w.Starts,
		}
		for _, d := range w.Readings {
			a.Reading += d
		}
		s.XIDs, s.Activity = e.XIDs.List(), a
	}
	return s.text()
}

func (s *Snapshot) text() ([]byte, error) {
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(s); err != nil {
		return nil, fmt.Errorf("internal error: the metrics are inconsistent: %w", err)
	}
	families, err := r.Gather()
	if err != nil {
		return nil, fmt.Errorf("internal error: the metrics are inconsistent: %w", err)
	}
	var out bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&out, f); err != nil {
			return nil, fmt.Errorf("internal error: the metrics do not encode: %w", err)
		}
	}
	return out.Bytes(), nil
}

// Get answers GET /metrics.
func (e *Exporter) Get(c *server.Call) error {
	b, err := e.Text(c.Caller)
	if err != nil {
		return err
	}
	return c.ReplyText(http.StatusOK, ContentType, b)
}
