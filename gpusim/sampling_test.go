package gpusim_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
)

func TestSeriesRunsDry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := node(t, nil, "A30-24GB")
		d, ids := port(t, n)
		time.Sleep(time.Minute)
		if s, err := d.UtilizationSeries(t.Context(), ids[0], 9); err != nil || len(s.Samples) != 0 || s.Newest != 9 {
			t.Errorf("never used: %+v, %v", s, err)
		}
		c := open(t, n, gpusim.ContextSpec{PID: 7, Device: "0"})
		if err := c.Launch(t.Context(), 20*time.Millisecond, 100); err != nil {
			t.Fatal(err)
		}
		if err := c.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		s, err := d.UtilizationSeries(t.Context(), ids[0], 0)
		if err != nil || len(s.Samples) != 15 { // 2 s are 14.4 periods
			t.Fatalf("after 2 s of work: %+v, %v", s, err)
		}
		if last := s.Samples[14]; last.Time != s.Newest || time.Since(time.UnixMicro(int64(last.Time))) < 900*time.Millisecond {
			t.Errorf("the newest sample is %+v of %d", last, s.Newest)
		}
		if again, err := d.UtilizationSeries(t.Context(), ids[0], s.Newest); err != nil || len(again.Samples) != 0 ||
			again.Newest != s.Newest {
			t.Errorf("idle since: %+v, %v", again, err)
		}
		if some, err := d.UtilizationSeries(t.Context(), ids[0], s.Samples[12].Time); err != nil ||
			!slices.Equal(some.Samples, s.Samples[13:]) {
			t.Errorf("newer than the last but two: %+v, %v", some, err)
		}
	})
}

func TestDriversWithoutSeries(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*gpusim.Config)
		want    error
		ret     gpusim.Ret
		missing []string
	}{
		{"present", func(*gpusim.Config) {}, nil, gpusim.NotFound, nil},
		{"MIG", withMIG, gpu.ErrNotSupported, gpusim.NotSupported, nil},
		{"unsupported", func(c *gpusim.Config) { c.Series = gpusim.SeriesUnsupported }, gpu.ErrNotSupported, gpusim.NotSupported, nil},
		{"missing", func(c *gpusim.Config) { c.Series = gpusim.SeriesMissing }, gpu.ErrMissing, gpusim.FunctionNotFound, []string{"nvmlDeviceGetSamples"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t, c.change, "A100-SXM4-40GB")
			d, ids := port(t, n)
			if _, err := d.UtilizationSeries(t.Context(), ids[0], 0); !errors.Is(err, c.want) {
				t.Errorf("the port: %v, want %v", err, c.want)
			}
			if info, err := d.Node(t.Context()); err != nil || !slices.Equal(info.Missing, c.missing) {
				t.Errorf("missing: %v, %v, want %v", info.Missing, err, c.missing)
			}
			l := library(t, n, false)
			h := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
			if ret := l.ret("nvmlDeviceGetSamples", h, 1, 0); ret != c.ret {
				t.Errorf("the library: %d, want %d", ret, c.ret)
			}
			if ret := l.ret("nvmlDeviceGetSamples", h, 0, 0); ret != gpusim.NotSupported {
				t.Errorf("samples of the power: %d, want not supported", ret)
			}
		})
	}
}

// TestOlderUtilizationCall: it is not supported on Blackwell.
func TestOlderUtilizationCall(t *testing.T) {
	for model, want := range map[string]gpusim.Ret{"H100-SXM5-80GB": gpusim.NotFound, "B200-180GB": gpusim.NotSupported} {
		n := node(t, nil, model)
		l := library(t, n, false)
		h := l.one("nvmlDeviceGetHandleByIndex_v2", 0)
		if ret := l.ret("nvmlDeviceGetProcessUtilization", h, 0); ret != want {
			t.Errorf("%s: %d, want %d", model, ret, want)
		}
		if ret := l.ret("nvmlDeviceGetProcessesUtilizationInfo", h, 0); ret != gpusim.NotFound {
			t.Errorf("%s, the newer call: %d, want %d", model, ret, gpusim.NotFound)
		}
	}
}

// TestFaultsOfSensors: each call of a sensor can fail, lose the GPU or hang at its Nth occurrence.
func TestFaultsOfSensors(t *testing.T) {
	sensors := map[string]func(*gpusim.Driver, context.Context, gpu.UUID) error{
		"DeviceGetSamples": func(d *gpusim.Driver, ctx context.Context, id gpu.UUID) error {
			_, err := d.UtilizationSeries(ctx, id, 0)
			return err
		},
		"DeviceGetProcessesUtilizationInfo": func(d *gpusim.Driver, ctx context.Context, id gpu.UUID) error {
			_, _, err := d.Utilization(ctx, id, 0)
			return err
		},
	}
	for call, read := range sensors {
		for do, want := range map[string]error{gpusim.FaultFail: gpu.ErrUnknown, gpusim.FaultLose: gpu.ErrLost, gpusim.FaultHang: gpu.ErrTimeout} {
			t.Run(call+" "+do, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := node(t, nil, "A30-24GB", "A30-24GB")
					d, ids := port(t, n)
					if _, err := n.AddFault(gpusim.Fault{Call: "nvml" + call, GPU: "0", Do: do, Nth: 3}); err != nil {
						t.Fatal(err)
					}
					for i := range 3 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						err := read(d, ctx, ids[0])
						cancel()
						if i < 2 && err != nil || i == 2 && !errors.Is(err, want) {
							t.Errorf("call %d: %v, want the third to end with %v", i+1, err, want)
						}
						if err := read(d, t.Context(), ids[1]); err != nil {
							t.Errorf("the other GPU: %v", err)
						}
					}
					n.ClearFaults(0)
				})
			})
		}
	}
}

// TestSeedsDiffer: nodes of one seed sample alike, and each of their GPUs otherwise.
func TestSeedsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := func(seed uint64) (out [2][]gpu.SeriesSample) {
			start := time.Now()
			n := node(t, func(c *gpusim.Config) {
				c.Sampling = engine.Sampling{Jitter: 0.2, Seed: seed, Clock: engine.SinceBoot}
			}, "A30-24GB", "A30-24GB")
			d, ids := port(t, n)
			for i := range ids {
				c := open(t, n, gpusim.ContextSpec{PID: 7, Device: string(ids[i])})
				if err := c.Launch(t.Context(), 3*time.Second, 1); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * time.Second)
			for i := range ids {
				s, err := d.UtilizationSeries(t.Context(), ids[i], 0)
				if err != nil || len(s.Samples) < 15 || s.Newest > uint64(time.Since(start).Microseconds()) {
					t.Fatalf("%+v, %v", s, err)
				}
				out[i] = s.Samples
			}
			return out
		}
		a, b, c := times(1), times(1), times(2)
		if !slices.Equal(a[0], b[0]) || !slices.Equal(a[1], b[1]) {
			t.Errorf("one seed: %v and %v", a, b)
		}
		if slices.Equal(a[0], a[1]) || slices.Equal(a[0], c[0]) {
			t.Errorf("the GPUs of a node, or nodes of two seeds, sample alike: %v, %v", a, c)
		}
	})
}
