package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/internal/text"
)

// readEvery is how often the state of the node is read while something is waited for.
const readEvery = 100 * time.Millisecond

// waitLimit is for one thing that is waited for, on a busy host.
const waitLimit = 10 * time.Minute

// metricsText is what a node answers to a scrape.
type metricsText struct {
	leases, series int
	text           []byte
	packed         int // bytes with gzip, which Prometheus requests
	times          []time.Duration
}

// metrics reads the metrics of the node with each number of leases.
func (s *site) metrics(ctx context.Context, n *node) ([]metricsText, error) {
	var all []metricsText
	c := n.Client()
	for _, leases := range s.leases {
		if err := n.run(ctx, leases); err != nil {
			return nil, err
		}
		m := metricsText{leases: leases}
		for range s.readings {
			begin := time.Now()
			b, err := c.Metrics(ctx)
			if err != nil {
				return nil, err
			}
			m.times, m.text = append(m.times, time.Since(begin)), b
		}
		m.series = seriesOf(m.text)
		var err error
		if m.packed, err = packed(m.text); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// seriesOf counts the lines that are no comments.
func seriesOf(b []byte) int {
	n := 0
	for line := range bytes.Lines(b) {
		if len(bytes.TrimSpace(line)) > 0 && line[0] != '#' {
			n++
		}
	}
	return n
}

func packed(b []byte) (int, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		return 0, err
	}
	err := w.Close()
	return out.Len(), err
}

// median and the longest.
func middle(d []time.Duration) (median, longest time.Duration) {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2], d[len(d)-1]
}

func (s *site) printMetrics(all []metricsText) {
	fmt.Fprintf(s.out, "One node: 8 GPUs (2 MIG with 7 instances each, 2 MPS, 4 time-sliced), %d tenants with 3 grants each\n\n", tenants)
	fmt.Fprintf(s.out, "%8s %8s %10s %10s %12s %12s\n", "leases", "series", "bytes", "gzip", "median", "longest")
	for i := range all {
		m := &all[i]
		median, longest := middle(m.times)
		fmt.Fprintf(
			s.out, "%8d %8d %10d %10d %12s %12s\n", m.leases, m.series, len(m.text), m.packed,
			median.Round(100*time.Microsecond), longest.Round(100*time.Microsecond),
		)
	}
	m := &all[len(all)-1]
	perSecond := float64(s.nodes) / s.interval.Seconds()
	fmt.Fprintf(
		s.out, "\n%s with %s each, scraped every %s: %d series, %.0f samples/s, %.2f MB/s (%.2f MB/s with gzip)\n",
		text.Count(s.nodes, "node"), text.Count(m.leases, "lease"), s.interval, s.nodes*m.series, perSecond*float64(m.series),
		perSecond*float64(len(m.text))/1e6, perSecond*float64(m.packed)/1e6,
	)
}
