package gpusim

import (
	"context"
	"math"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// UseSupport is how the driver answers the calls for the counters of GPU instances (Gpm…).
type UseSupport string

// The answers of these calls. What the real driver does where nvml.h is silent is not known: a board may refuse them without a
// capability, and a sample may keep its instance.
const (
	UsePresent     UseSupport = ""            // on Hopper and newer
	UseUnsupported UseSupport = "unsupported" // on no board
	UseDenied      UseSupport = "denied"      // NO_PERMISSION, also for privileged callers
	UseKeeps       UseSupport = "keeps"       // as present, and an instance with a sample in a buffer is in use
)

// useInterval is the least time between two samples that are compared (nvml.h).
const useInterval = 100 * time.Millisecond

// The metrics that are computed.
const (
	useGraphics = 1
	useSM       = 2
	useMemory   = 10
)

// useBuffer is a buffer for the counters of an instance.
type useBuffer struct {
	client *Client
	of     *instance // nil: nothing was read into it
	at     time.Time
	ran    time.Duration
	worked time.Duration
}

// countsUse reports whether the board has counters of its instances.
func (g *device) countsUse() bool {
	return g.node.cfg.Use != UseUnsupported && g.model.Architecture != Ampere
}

// readUseLocked reads the counters of an instance.
func (g *device) readUseLocked(gi uint32, into *useBuffer) Ret {
	in := g.instances[gi]
	switch {
	case g.node.cfg.Use == UseDenied:
		return NoPermission
	case !g.countsUse(), !g.migCurrent:
		return NotSupported
	case in == nil:
		return NotFound
	}
	into.of, into.at = in, g.node.clock.Now()
	into.ran, into.worked = in.engine.Counters()
	return Success
}

// compare computes a metric from two samples. Those of two instances that had the same number give nonsense, as counters do that began
// again.
func (b *useBuffer) compare(to *useBuffer, metric uint64) (float64, Ret) {
	length := to.at.Sub(b.at)
	switch {
	case b.of == nil || to.of == nil || b.of.dev != to.of.dev || b.of.id != to.of.id || length < 0:
		return 0, InvalidArgument
	case length < useInterval:
		return 0, UnknownError
	}
	percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(length) }
	switch metric {
	case useGraphics:
		return percent(to.ran - b.ran), Success
	case useSM:
		return percent(to.worked - b.worked), Success
	case useMemory:
		return percent(to.worked-b.worked) / 2, Success
	}
	return 0, NotSupported
}

// heldLocked reports whether a sample keeps an instance.
func (gi *instance) heldLocked() bool {
	if gi.dev.node.cfg.Use != UseKeeps {
		return false
	}
	for _, b := range gi.dev.node.useBuffers {
		if b.of == gi {
			return true
		}
	}
	return false
}

// use answers the calls for the counters of instances.
func (q *call) use() (Ret, bool) {
	switch q.name {
	case "GpmQueryDeviceSupport":
		return q.gpu(func(t target) Ret { return q.out.put(flag(t.g.countsUse())) }), true
	case "GpmSampleAlloc":
		return q.node(func(n *Node) Ret {
			n.useN++
			n.useBuffers[n.useN] = &useBuffer{client: q.c}
			return q.out.put(n.useN)
		}), true
	case "GpmSampleFree":
		return q.node(func(n *Node) Ret {
			if b := n.useBuffers[q.args[0]]; b == nil || b.client != q.c {
				return InvalidArgument
			}
			delete(n.useBuffers, q.args[0])
			return Success
		}), true
	case "GpmMigSampleGet":
		return q.admin(func(t target) Ret {
			b := t.g.node.useBuffers[q.args[2]]
			if b == nil || b.client != q.c {
				return InvalidArgument
			}
			return t.g.readUseLocked(q.u32(1), b)
		}), true
	}
	return 0, false
}

// metrics answers with a code and a value for each metric after the two buffers.
func (q *call) metrics(args []uint64) Ret {
	return q.node(func(n *Node) Ret {
		if len(args) < 2 {
			return InvalidArgument
		}
		from, to := n.useBuffers[args[0]], n.useBuffers[args[1]]
		if from == nil || to == nil {
			return InvalidArgument
		}
		for _, metric := range args[2:] {
			value, ret := from.compare(to, metric)
			if ret == InvalidArgument || ret == UnknownError {
				return ret
			}
			q.out.put(uint64(ret), math.Float64bits(value))
		}
		return Success
	})
}

// InstanceUse reads how instances were used since the last call.
func (d *Driver) InstanceUse(ctx context.Context, id gpu.UUID, instances []uint32) ([]gpu.InstanceUse, error) {
	const op = "read the utilisation of instances"
	var out []gpu.InstanceUse
	calls := []step{{"GpmQueryDeviceSupport", func(g *device) Ret {
		if !g.countsUse() {
			return NotSupported
		}
		return Success
	}}}
	for _, gi := range instances {
		calls = append(calls, step{"GpmMigSampleGet", func(g *device) Ret {
			var now useBuffer
			was := d.use[useKey{id, gi}]
			if g.node.clock.Now().Sub(was.at) < gpu.LeastUse {
				return Success
			}
			switch ret := g.readUseLocked(gi, &now); ret {
			case Success:
			case NotFound:
				delete(d.use, useKey{id, gi})
				return Success
			default:
				return ret
			}
			if was.of == now.of && now.at.Sub(was.at) <= gpu.MostUse {
				u := gpu.InstanceUse{GI: gi, Length: now.at.Sub(was.at)}
				for metric, to := range map[uint64]**float64{useGraphics: &u.Busy, useSM: &u.SM, useMemory: &u.Memory} {
					if value, ret := was.compare(&now, metric); ret == Success {
						*to = gpu.Percentage(value)
					}
				}
				out = append(out, u)
			}
			if d.use == nil {
				d.use = map[useKey]useBuffer{}
			}
			d.use[useKey{id, gi}] = now
			return Success
		}})
	}
	if err := d.on(ctx, op, id, calls...); err != nil {
		return nil, err
	}
	return out, nil
}

// useKey is an instance whose counters a Driver has read.
type useKey struct {
	gpu gpu.UUID
	gi  uint32
}
