package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// scrapeEvery is the interval of the Prometheus that is measured: shorter than that of a site, so that it ends soon.
const scrapeEvery = 5 * time.Second

// scraped counts the scrapes of each target.
type scraped struct {
	sync.Mutex // guards the others
	of         map[string]int
	least      int // how often a target was scraped that was scraped least
	targets    int
}

func (c *scraped) add(path string) {
	c.Lock()
	defer c.Unlock()
	c.of[path]++
	c.least = c.of[path]
	for _, n := range c.of {
		c.least = min(c.least, n)
	}
	if len(c.of) < c.targets {
		c.least = 0
	}
}

func (c *scraped) all() int {
	c.Lock()
	defer c.Unlock()
	return c.least
}

// measurePrometheus lets a Prometheus scrape the text of the node as that of many targets, and reads its memory and processor time.
func (s *site) measurePrometheus(ctx context.Context, m *metricsText) error {
	if s.prometheus == "" {
		fmt.Fprintln(s.out, "Prometheus was not measured: -prometheus names the directory where it is unpacked")
		return nil
	}
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	count := &scraped{of: map[string]int{}, targets: s.targets}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write(m.text) // The reader may have ended.
		count.add(r.URL.Path)
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // Close ends it.
	}()
	defer func() {
		server.Close()
		<-served
	}()
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(s.scrapeConfig(listener.Addr().String())), 0o600); err != nil {
		return err
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(
		ctx, filepath.Join(s.prometheus, "usr/bin/prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "tsdb"),
		"--web.listen-address=127.0.0.1:0", "--log.level=warn",
	)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &log, &log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // The signal ends it, or ctx.
	}()
	wait, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	waited := harness.Await(wait, readEvery, "not every target was scraped", func() (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("prometheus ended, %s: %s", cmd.ProcessState, log.String())
		default:
		}
		return count.all() >= s.scrapes, nil
	})
	memory, err := residentMemory(cmd.Process.Pid)
	_ = cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
	if err := errors.Join(waited, err); err != nil {
		return err
	}
	<-ended
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	scrapes := 0
	for _, n := range count.of {
		scrapes += n
	}
	series, samples := s.targets*m.series, float64(scrapes*m.series)
	perSeries, perSample := float64(memory)/float64(series), used.Seconds()/samples
	fmt.Fprintf(
		s.out, "Prometheus with %d such targets, %d series: %.0f MB of memory, %.1f kB a series; %.2f µs of processor time a sample\n",
		s.targets, series, float64(memory)/1e6, perSeries/1e3, perSample*1e6,
	)
	fmt.Fprintf(
		s.out, "  for %d nodes: %.1f GB of memory, %.2f processors\n", s.nodes, perSeries*float64(s.nodes*m.series)/1e9,
		perSample*float64(s.nodes*m.series)/s.interval.Seconds(),
	)
	return nil
}

// scrapeConfig has a target for each path.
func (s *site) scrapeConfig(address string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "global: {scrape_interval: %s}\nscrape_configs:\n  - job_name: gpushare\n    static_configs:\n", scrapeEvery)
	for i := range s.targets {
		fmt.Fprintf(&b, "      - {targets: ['%s'], labels: {__metrics_path__: /%d, instance: node%d}}\n", address, i, i)
	}
	return b.String()
}

// residentMemory is VmRSS of a process, in bytes.
func residentMemory(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var kib uint64
			_, err := fmt.Sscan(rest, &kib)
			return kib << 10, err
		}
	}
	return 0, errors.New("the kernel does not say how much memory it has")
}
