package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// site is what is simulated.
type site struct {
	nodes    int
	interval time.Duration // between two scrapes
	leases   []int         // on a node, for each measurement
	readings int
	forks    int
	hosts    int // of the play
	targets  int // of the Prometheus that is measured
	scrapes  int // of each

	bin                 string // the programs of gpushare
	ansible, prometheus string // directories with the programs of these; empty: they are not measured

	out, errs io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// limit is for everything. A host that is busy needs longer than an idle one.
const limit = 30 * time.Minute

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	s := &site{out: out, errs: errs}
	var leases string
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.IntVar(&s.nodes, "nodes", 1000, "multiply by this `number` of nodes")
	flags.DurationVar(&s.interval, "interval", 30*time.Second, "a node is scraped once in this `time`")
	flags.StringVar(&leases, "leases", "0,8,64", "measure a node with these `numbers` of leases")
	flags.IntVar(&s.readings, "readings", 20, "read the metrics this `number` of times, and apply a fifth of it")
	flags.IntVar(&s.forks, "forks", 50, "the `number` of hosts that Ansible handles at once")
	flags.IntVar(&s.hosts, "hosts", 50, "the `number` of hosts in the play that is measured")
	flags.IntVar(&s.targets, "targets", 100, "the `number` of targets of the Prometheus that is measured")
	flags.IntVar(&s.scrapes, "scrapes", 4, "measure when each target was scraped this `number` of times")
	flags.StringVar(&s.bin, "bin", "bin", "the `directory` with the programs of gpushare")
	flags.StringVar(&s.ansible, "ansible", "", "the `directory` where ansible-core is unpacked; empty: it is not measured")
	flags.StringVar(&s.prometheus, "prometheus", "", "the `directory` where prometheus is unpacked; empty: it is not measured")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := s.check(leases, flags.Args()); err != nil {
		fmt.Fprintln(errs, "scale:", err)
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.simulate(ctx); err != nil {
		fmt.Fprintln(errs, "scale:", err)
		return 1
	}
	return 0
}

func (s *site) check(leases string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("it takes no argument %q", rest[0])
	}
	for word := range strings.SplitSeq(leases, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n > mostLeases {
			return fmt.Errorf("-leases %q: write numbers up to %d", leases, mostLeases)
		}
		s.leases = append(s.leases, n)
	}
	if min(s.nodes, s.readings, s.forks, s.hosts, s.targets, s.scrapes) < 1 || s.interval <= 0 {
		return errors.New("a number is below 1")
	}
	return nil
}

// simulate measures one node, and what is multiplied.
func (s *site) simulate(ctx context.Context) (err error) {
	n, err := s.startNode(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	texts, err := s.metrics(ctx, n)
	if err != nil {
		return err
	}
	s.printMetrics(texts)
	last := texts[len(texts)-1]
	if err := s.measurePrometheus(ctx, &last); err != nil {
		return err
	}
	if err := s.applies(ctx, n); err != nil {
		return err
	}
	return s.measureAnsible(ctx, n)
}
