package gpusim

import (
	"fmt"
	"hash/fnv"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/engine"
)

// SeriesSupport is how the driver answers DeviceGetSamples.
type SeriesSupport string

// The answers of DeviceGetSamples.
const (
	SeriesPresent     SeriesSupport = ""
	SeriesMissing     SeriesSupport = "missing"     // FUNCTION_NOT_FOUND, as a library without the function
	SeriesUnsupported SeriesSupport = "unsupported" // NOT_SUPPORTED, as on boards without the samples
)

// newEngine returns the engine of a GPU or of an instance.
func (g *device) newEngine() *engine.Engine {
	n := g.node
	s := n.cfg.Sampling
	if s.Seed != 0 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %d", s.Seed, g.index)
		s.Seed = h.Sum64()
	}
	s.Uptime += n.clock.Now().Sub(n.boots)
	e := engine.NewSampled(n.clock, s)
	e.SwitchBy(n.cfg.Switching)
	return e
}

// The sampling types of DeviceGetSamples, of which the virtual driver has one.
const samplesOfUtilization = 1

// series answers with the samples newer than the third argument.
func (q *call) series(t target) Ret {
	if q.args[1] != samplesOfUtilization {
		return NotSupported
	}
	samples, ret := t.g.seriesLocked(q.args[2])
	for _, s := range samples {
		q.out.put(s.Time, uint64(s.Percent))
	}
	return ret
}

// seriesLocked returns the samples of the whole GPU newer than since. nvml.h: they are not supported on GPUs with MIG.
func (g *device) seriesLocked(since uint64) ([]engine.SeriesSample, Ret) {
	switch {
	case g.node.cfg.Series == SeriesMissing:
		return nil, FunctionNotFound
	case g.node.cfg.Series == SeriesUnsupported || g.migCurrent:
		return nil, NotSupported
	}
	samples := g.engine.Series(since)
	if len(samples) == 0 {
		return nil, NotFound
	}
	return samples, Success
}

// utilizationCall is the call with which the worker reads the utilisation by process: the newer one where the library has
// it. Branches 470 and 535 do not.
func (n *Node) utilizationCall() string {
	if b := n.cfg.branch(); b == 470 || b == 535 {
		return "DeviceGetProcessUtilization"
	}
	return "DeviceGetProcessesUtilizationInfo"
}

// utilization answers with the rows newer than the second argument: per process, in percent of those samples, or one by
// one.
func (q *call) utilization(t target) Ret {
	// The older call is not supported on Blackwell (HAMi-core#218).
	if t.g.migCurrent || q.name == "DeviceGetProcessUtilization" && t.g.model.Architecture == Blackwell {
		return NotSupported
	}
	samples := t.g.utilizationLocked(q.args[1])
	if len(samples) == 0 {
		return NotFound
	}
	for _, s := range samples {
		q.out.put(uint64(s.PID), s.Time, uint64(s.SM), uint64(s.Mem))
	}
	return Success
}

// utilizationLocked returns the ring as the library reports it: one row per process, with the time of its newest sample
// and its mean over all samples. A sample that names another process counts as 0.
func (g *device) utilizationLocked(since uint64) []gpu.UtilSample {
	ring := g.engine.Samples(since)
	var out []gpu.UtilSample
	if g.node.cfg.RawSamples {
		for _, s := range ring {
			out = append(out, gpu.UtilSample{PID: s.PID, Time: s.Time, SM: s.SM})
		}
		return out
	}
	at := map[int]int{}
	for _, s := range ring {
		i, ok := at[s.PID]
		if !ok {
			i = len(out)
			at[s.PID] = i
			out = append(out, gpu.UtilSample{PID: s.PID})
		}
		out[i].Time = max(out[i].Time, s.Time)
		out[i].SM += s.SM
	}
	for i := range out {
		out[i].SM /= len(ring)
	}
	return out
}
