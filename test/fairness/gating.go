package fairness

import (
	"slices"
	"time"
)

// Rise is a lease that uses less than its share, and from a moment on keeps the GPU busy.
type Rise struct {
	Name  string
	Share float64
	Loads []Load // next to it
}

// Rises are the leases whose gating is measured.
func Rises() []Rise {
	return []Rise{
		{Name: "10 % next to training", Share: 10, Loads: []Load{training(90)}},
		{Name: "20 % next to training", Share: 20, Loads: []Load{training(80)}},
		{Name: "30 % next to training", Share: 30, Loads: []Load{training(70)}},
		{Name: "10 % next to two trainings", Share: 10, Loads: []Load{training(40), training(50)}},
		{Name: "20 % next to two trainings", Share: 20, Loads: []Load{training(30), training(50)}},
	}
}

// Gating is when a lease that rose was frozen for the first time, and what it had until it was held to its share.
type Gating struct {
	Rose  time.Duration // from when it keeps the GPU busy, to its first freeze
	Above time.Duration // the same from when it had more than its share of the last ten seconds; 0: it was frozen before
	Most  float64       // points above its share that it had in any ten seconds of the first minute
}

const (
	// gatingOver is for how long what a lease has after it rose is watched.
	gatingOver = time.Minute
	riseStep   = 50 * ms
)

// MeasureRise measures one rise. The moment is another one with each seed.
func MeasureRise(r Rise, v Variant, seed uint64) Gating {
	rose := 40*time.Second + time.Duration(seed%8)*1150*ms
	riser := changes(r.Share, Phase{rose, service}, Phase{time.Hour, flood})
	sc := withDefaults(Scenario{Loads: append([]Load{riser}, r.Loads...), Cheats: true})
	n := newNode(sc, v, Enforced, seed)
	defer n.engine.Close()
	var g gain
	var busy []time.Duration // each riseStep
	var out Gating
	above, begin := never, rose-window
	p, share := n.processes[0], sc.mayHave(0, rose)
	for at := begin; at <= rose+gatingOver; at += riseStep {
		n.run(at)
		if (at-begin)%gainStep == 0 {
			g.note(n, at)
		}
		busy = append(busy, n.busy()[0])
		if at <= rose || out.Rose != 0 {
			continue
		}
		before := busy[len(busy)-1-int(window/riseStep)]
		if above == never && busy[len(busy)-1]-before > time.Duration(share*float64(window)) {
			above = at
		}
		if p.frozenAt > rose {
			out.Rose, out.Above = p.frozenAt-rose, max(0, p.frozenAt-above)
		}
	}
	if out.Rose == 0 {
		out.Rose, out.Above = gatingOver, gatingOver
	}
	out.Most = g.worst
	return out
}

// Gatings are those of several seeds and samplers.
type Gatings []Gating

// at is the value below which a part of them lies.
func (l Gatings) at(part float64, of func(Gating) time.Duration) time.Duration {
	var out []time.Duration
	for _, g := range l {
		out = append(out, of(g))
	}
	slices.Sort(out)
	return out[min(int(part*float64(len(out))), len(out)-1)]
}

// rose and above are the two times of Gating.
func rose(g Gating) time.Duration  { return g.Rose }
func above(g Gating) time.Duration { return g.Above }

// most is the mean of what they had above their shares, and the greatest.
func (l Gatings) most() (mean, worst float64) {
	for _, g := range l {
		mean += g.Most / float64(len(l))
		worst = max(worst, g.Most)
	}
	return mean, worst
}

// gatingLimits are what the gating of all Rises keeps with a kind of samplers.
type gatingLimits struct {
	Median, Nine, Worst time.Duration // Above: of half of them, of nine of ten, and of all
	Mean                float64       // of Most
	Reason              string        // why it is not the target; empty for the target
}

// gatingTarget is the time in which a lease that rises above its share is to be frozen, and what it may have more than that.
var gatingTarget = gatingLimits{Median: 2 * time.Second, Nine: 2 * time.Second, Worst: 2 * time.Second, Mean: 2}
