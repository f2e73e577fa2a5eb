// Package memorysim runs what the daemon decides about GPU memory against virtual GPUs, in virtual time: leases that grow
// above their limits next to leases that grow within theirs.
//
// The GPU's memory is that of gpusim, with its refusals; the decisions are quota.MemoryControl, which the daemon uses too.
// The time that readings, freezes and programs take is drawn from what was published about real ones. A figure from here
// says how the policy behaves, not how a GPU does.
package memorysim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/quota"
)

// Backend is what enforces the limits.
type Backend string

// The backends.
const (
	Reactive Backend = "reactive" // the escalation
	Cgroup   Backend = "cgroup"   // the driver's limit for each cgroup, besides the escalation
	None     Backend = "none"     // nothing
)

const (
	gib = 1 << 30
	mib = 1 << 20

	reserve  = gib
	duration = time.Minute
	longest  = time.Second

	readingTime = 12 * time.Microsecond // of the total, inside the driver
)

// Rates are the fill rates of offenders, in GiB/s.
func Rates() []float64 { return []float64{0.5, 1, 2, 5, 10, 20, 40} }

// Result is one run.
type Result struct {
	Seed      uint64
	Rate      float64  // of the offenders, in GiB/s
	Offenders int      // leases that want more than their grant
	Overshoot []uint64 // by offender: the most that it used above its limit, in bytes
	Within    int      // leases that stay within their grant
	Starved   int      // leases within their grant to which the GPU refused memory that they were granted
	Harmed    []string // leases within their grant that were frozen or killed, or got a signal; "" is never in it
	Early     []string // leases that got SIGKILL without SIGTERM, or before the end of their grace
	Driver    time.Duration
}

// process is one program.
type process struct {
	lease, account string
	pid            int
	limit, target  uint64 // of its grant; what it wants
	chunk          uint64
	every          time.Duration // between two allocations
	offender       bool
	exits          time.Duration // after SIGTERM; 0: it ignores it
	next           time.Duration // the next allocation; -1: none
	used           uint64
	run            *gpusim.Context

	frozen       *time.Duration
	terminated   *time.Duration
	dies         time.Duration // 0: not yet
	dead         bool
	most         uint64
	refusedQuota bool
}

// sim is one run.
type sim struct {
	r       *rand.Rand
	node    *gpusim.Node
	driver  *gpusim.Driver
	id      gpu.UUID
	all     []*process
	policy  quota.OverusePolicy
	grace   time.Duration
	control quota.MemoryControl
	result  Result
	now     time.Duration
	backend Backend
	total   uint64
}

// cgroups are the cgroups of the processes: one for each grant.
type cgroups struct{ of map[int]string }

func (c *cgroups) Of(pid int) (string, error) {
	if cg, ok := c.of[pid]; ok {
		return cg, nil
	}
	return "", fmt.Errorf("pid %d is in no cgroup", pid)
}
func (c *cgroups) ID(string) uint64 { return 1 }
func (c *cgroups) Dmem(string) bool { return true }
func (c *cgroups) Root() string     { return "/cg" }

// Run is the run of one seed. It is an error when the virtual node cannot be made.
func Run(ctx context.Context, seed uint64, backend Backend) (Result, error) {
	model, err := nodefile.Model("H100-SXM5-80GB")
	if err != nil {
		return Result{}, err
	}
	groups := &cgroups{of: map[int]string{}}
	cfg := gpusim.Config{
		DriverVersion: "615.10",
		CUDAVersion:   13040,
		ContextMemory: 300 * mib,
		GPUs:          []gpusim.GPUConfig{{Model: model, PCI: "0000:07:00.0"}},
		Cgroups:       groups,
	}
	if backend == Cgroup {
		cfg.MemoryLimits = gpusim.MemoryLimitConfig{Accounting: gpusim.MemoryAccountingDmem}
	}
	node, err := gpusim.New(cfg, engine.SystemClock{})
	if err != nil {
		return Result{}, fmt.Errorf("cannot make the virtual node: %w", err)
	}
	defer node.Close()
	s := &sim{r: rand.New(rand.NewPCG(seed, 7)), node: node, driver: node.Driver(1), backend: backend, result: Result{Seed: seed}}
	defer s.driver.Close()
	info, err := s.driver.Node(ctx)
	if err != nil {
		return Result{}, err
	}
	s.id = info.GPUs[0].UUID
	m, err := s.driver.Memory(ctx, s.id)
	if err != nil {
		return Result{}, err
	}
	s.total = m.Total - m.Reserved
	if err := s.prepare(ctx, groups); err != nil {
		return Result{}, err
	}
	return s.result, s.play(ctx)
}

// prepare draws the grants, which fit in the GPU together, and their programs.
func (s *sim) prepare(ctx context.Context, groups *cgroups) error {
	grants := 2 + s.r.IntN(5)
	weights := make([]float64, grants)
	sum := 0.0
	for i := range weights {
		weights[i] = 0.3 + s.r.Float64()
		sum += weights[i]
	}
	granted := float64(s.total-reserve) * (0.6 + 0.4*s.r.Float64())
	offenders := min(1+s.r.IntN(2), grants-1)
	s.result.Rate = Rates()[s.r.IntN(len(Rates()))]
	s.policy, s.grace = quota.OveruseKill, time.Duration(2+s.r.IntN(9))*time.Second
	if s.r.IntN(4) == 0 {
		s.policy = quota.OveruseFreeze
	}
	chunks := []uint64{20 * mib, 64 * mib, 256 * mib, gib}
	for i := range grants {
		p := &process{
			lease: fmt.Sprintf("l%d", i), account: fmt.Sprintf("t%d/g", i), pid: 100 + i, limit: uint64(granted * weights[i] / sum),
			offender: i < offenders, chunk: chunks[s.r.IntN(len(chunks))], used: 300 * mib,
		}
		rate := 0.1 * gib * (1 + 49*s.r.Float64()) // 0.1 to 5 GiB/s
		part := 0.5 + 0.5*s.r.Float64()
		if p.offender {
			rate, part = s.result.Rate*gib, 1.1+2*s.r.Float64()
			if s.r.IntN(5) < 3 {
				p.exits = time.Duration((0.05 + 1.2*s.r.Float64()) * float64(s.grace))
			}
			s.result.Offenders++
		} else {
			s.result.Within++
		}
		p.target = uint64(float64(p.limit) * part)
		p.every = time.Duration(float64(p.chunk) / rate * float64(time.Second))
		p.next = time.Duration(s.r.Float64() * 20 * float64(time.Second))
		groups.of[p.pid] = "/cg/" + p.lease
		if s.backend == Cgroup {
			if err := s.driver.SetMemoryLimit(ctx, s.id, "/cg/"+p.lease, &p.limit); err != nil {
				return fmt.Errorf("cannot set the limit of %s: %w", p.lease, err)
			}
		}
		run, err := s.node.OpenContext(gpusim.ContextSpec{PID: p.pid, Device: string(s.id)})
		if err != nil {
			return fmt.Errorf("cannot start %s: %w", p.lease, err)
		}
		p.run = run
		s.all = append(s.all, p)
	}
	return nil
}

// play lets time pass: the next event is the allocation or the death of a program, or the daemon's next reading.
func (s *sim) play(ctx context.Context) error {
	reading := time.Duration(0)
	for s.now < duration {
		next := reading
		var who *process
		for _, p := range s.all {
			if at, ok := p.event(); ok && at < next {
				next, who = at, p
			}
		}
		s.now = max(s.now, next)
		if who != nil {
			s.step(who)
			continue
		}
		at, err := s.sample(ctx)
		if err != nil {
			return err
		}
		reading = at
	}
	for _, p := range s.all {
		if p.offender {
			s.result.Overshoot = append(s.result.Overshoot, p.most-min(p.most, p.limit))
		} else if p.refusedQuota {
			s.result.Starved++
		}
	}
	return nil
}

// event is the next event of a program.
func (p *process) event() (time.Duration, bool) {
	switch {
	case p.dead:
		return 0, false
	case p.dies > 0 && (p.next < 0 || p.frozen != nil || p.dies <= p.next):
		return p.dies, p.frozen == nil
	case p.frozen != nil || p.next < 0:
		return 0, false
	}
	return p.next, true
}

func (s *sim) step(p *process) {
	if p.dies > 0 && s.now >= p.dies {
		s.end(p)
		return
	}
	p.next = s.now + time.Duration(float64(p.every)*(0.7+0.6*s.r.Float64()))
	want := min(p.chunk, p.target-min(p.used, p.target))
	if want == 0 {
		if p.next = -1; !p.offender && s.r.IntN(3) > 0 { // It frees some, and grows again.
			free := uint64(float64(p.used-300*mib) * s.r.Float64())
			if p.run.Free(free) == nil {
				p.used -= free
				p.next = s.now + time.Duration(s.r.Float64()*5*float64(time.Second))
			}
		}
		return
	}
	if p.run.Alloc(want) != nil {
		p.refusedQuota = p.refusedQuota || p.used+want <= p.limit
		p.next = s.now + 500*time.Millisecond // It tries again.
		return
	}
	p.used += want
	p.most = max(p.most, p.used)
}

func (s *sim) end(p *process) {
	p.run.Close()
	p.dead, p.used = true, 0
}

// sample is one reading of the daemon, with what it does after it. It returns the time of the next one.
func (s *sim) sample(ctx context.Context) (next time.Duration, err error) {
	if s.backend == None {
		return duration, nil
	}
	m, err := s.driver.Memory(ctx, s.id)
	if err != nil {
		return 0, err
	}
	s.pass(readingTime + time.Duration(s.r.IntN(200))*time.Microsecond) // With the way to the worker and back.
	device := quota.DeviceMemory{Free: &m.Free, Reserve: reserve}
	spent := readingTime
	if s.control.Read(s.now, m.Used, device, longest) {
		list, err := s.driver.Processes(ctx, s.id)
		if err != nil {
			return 0, err
		}
		elapsed := 200*time.Microsecond + time.Duration(s.r.ExpFloat64()*float64(700*time.Microsecond))
		spent += elapsed
		s.pass(elapsed)
		if m, err = s.driver.Memory(ctx, s.id); err != nil {
			return 0, err
		}
		for _, a := range s.control.Listed(s.now, m.Used, device, s.accounts(list)) {
			s.act(a)
		}
	}
	s.result.Driver += spent
	s.control.Sampling.Spent(s.now, s.result.Driver)
	return s.now + s.control.Next(s.now, device, longest), nil
}

// pass lets programs run while the daemon waits: what they do then is not in its reading.
func (s *sim) pass(d time.Duration) {
	end := s.now + d
	for {
		var who *process
		at := end
		for _, p := range s.all {
			if t, ok := p.event(); ok && t < at {
				at, who = t, p
			}
		}
		if who == nil {
			break
		}
		s.now = max(s.now, at)
		s.step(who)
	}
	s.now = max(s.now, end)
}

// accounts are the grants with what the driver's list says.
func (s *sim) accounts(list []gpu.Process) (out []quota.MemoryAccount) {
	used := map[int]uint64{}
	for _, p := range list {
		if p.Memory != nil {
			used[p.PID] = *p.Memory
		}
	}
	for _, p := range s.all {
		a := quota.MemoryAccount{ID: p.account, Limit: p.limit, Policy: s.policy, Grace: s.grace}
		if !p.dead {
			b := used[p.pid]
			a.Leases = []quota.MemoryUse{{Lease: p.lease, Used: &b}}
		}
		out = append(out, a)
	}
	return out
}

// act carries out one decision.
func (s *sim) act(a quota.MemoryAction) {
	i := slices.IndexFunc(s.all, func(p *process) bool { return p.lease == a.Lease })
	if i < 0 {
		return
	}
	p := s.all[i]
	if !p.offender {
		s.result.Harmed = append(s.result.Harmed, fmt.Sprintf("%v %s: %s", s.now, p.lease, a.Kind))
	}
	switch a.Kind {
	case quota.MemoryFreeze:
		s.pass(100*time.Microsecond + time.Duration(s.r.IntN(1300))*time.Microsecond)
		if !p.dead {
			at := s.now
			p.frozen = &at
		}
	case quota.MemoryThaw:
		s.thaw(p)
	case quota.MemoryStop:
		s.thaw(p)
		if s.r.IntN(10) == 0 {
			return // A driver call in between failed: no signal was sent.
		}
		at := s.now
		p.terminated = &at
		s.control.Escalation.Terminated(p.lease, s.now)
		if p.exits > 0 && p.dies == 0 {
			p.dies = s.now + p.exits
		}
	case quota.MemoryKill:
		if p.terminated == nil || s.now < *p.terminated+s.grace {
			s.result.Early = append(s.result.Early, p.lease)
		}
		s.pass(500 * time.Millisecond) // The backlog.
		s.control.Escalation.Killed(p.lease, s.now)
		if !p.dead {
			s.end(p)
		}
	}
}

func (s *sim) thaw(p *process) {
	if p.frozen == nil {
		return
	}
	for _, at := range []*time.Duration{&p.next, &p.dies} {
		if *at > *p.frozen {
			*at += s.now - *p.frozen
		} else if *at > 0 {
			*at = s.now
		}
	}
	p.frozen = nil
}

// Summary is what many runs say about one fill rate.
type Summary struct {
	Rate      float64 // GiB/s
	Runs      int
	Offenders int
	Median    float64 // of the overshoot, in GiB
	P95       float64
	Worst     float64
	Within    int // leases within their grant
	Starved   int // of those: leases that saw out of memory
	Harmed    int // of those: leases that were frozen or stopped
}

// Summarize sorts runs by their fill rate. The last row is all runs.
func Summarize(runs []Result) []Summary {
	var out []Summary
	for _, rate := range append(Rates(), 0) {
		s := Summary{Rate: rate}
		var over []uint64
		for i := range runs {
			if r := &runs[i]; rate == 0 || r.Rate == rate {
				s.Runs++
				s.Offenders += r.Offenders
				s.Within += r.Within
				s.Starved += r.Starved
				s.Harmed += len(r.Harmed)
				over = append(over, r.Overshoot...)
			}
		}
		slices.SortFunc(over, cmp.Compare[uint64])
		at := func(q float64) float64 {
			if len(over) == 0 {
				return 0
			}
			return float64(over[min(int(q*float64(len(over))), len(over)-1)]) / gib
		}
		s.Median, s.P95, s.Worst = at(0.5), at(0.95), at(1)
		out = append(out, s)
	}
	return out
}
