package nodefile

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/engine"
)

// sampler is the description of the driver's sampler.
type sampler struct {
	Naming       string  `yaml:"naming"`
	Period       string  `yaml:"period"`
	Jitter       float64 `yaml:"jitter"`
	Clock        string  `yaml:"clock"`
	ZeroWhenIdle bool    `yaml:"zero_when_idle"`
	Series       string  `yaml:"series"`
}

// sampling returns the sampling of a node with this seed.
func (s sampler) sampling(seed string) (engine.Sampling, gpusim.SeriesSupport, error) {
	h := fnv.New64a()
	fmt.Fprintf(h, "sampler %s", seed)
	out := engine.Sampling{
		Naming: engine.Naming(s.Naming), Jitter: s.Jitter, Clock: engine.SampleClock(s.Clock), ZeroWhenIdle: s.ZeroWhenIdle,
		Seed: h.Sum64(),
	}
	if s.Period != "" {
		d, err := time.ParseDuration(s.Period)
		if err != nil || d == 0 {
			return out, "", fmt.Errorf("period must be a duration such as 168ms, not %q", s.Period)
		}
		out.Period = d
	}
	if err := out.Validate(); err != nil {
		return out, "", err
	}
	series := gpusim.SeriesSupport(s.Series)
	switch series {
	case "present":
		series = gpusim.SeriesPresent
	case gpusim.SeriesPresent, gpusim.SeriesMissing, gpusim.SeriesUnsupported:
	default:
		return out, "", fmt.Errorf("series must be present, %s or %s, not %q", gpusim.SeriesMissing, gpusim.SeriesUnsupported, s.Series)
	}
	return out, series, nil
}
