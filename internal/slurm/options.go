package slurm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// The variables of the SPANK plug-in, as a Prolog has them, and their forms. They are text of the user.
const (
	memoryVariable = "SPANK_GPUSHARE_MEMORY"
	shareVariable  = "SPANK_GPUSHARE_SHARE"
)

// HasShare reports whether a share was given, which needs the spec for its bound.
func HasShare(getenv func(string) string) bool { return getenv(shareVariable) != "" }

// MostShare is the largest share that a job may have of its grant: as much of the share as its memory is of the grant's memory, so that it
// takes none of the part of others. Of several grants that fit it is the smallest. nil: it is not known. memory is nil if it has no shards.
func MostShare(spec *api.Spec, s *api.Status, t Terms, gpu string, memory *api.Bytes) *api.Percent {
	if spec == nil {
		return nil
	}
	var most *api.Percent
	fitting := t.fitting(s, gpu, "timeslice", "mps")
	for i := range spec.Tenants {
		for k := range spec.Tenants[i].Grants {
			g := &spec.Tenants[i].Grants[k]
			share := cmp.Or(g.Timeslice, g.MPS)
			if spec.Tenants[i].Name != t.Tenant || share == nil || !slices.Contains(fitting, g.Name) {
				continue
			}
			if memory != nil && (share.GPUMemory == nil || *share.GPUMemory == 0) {
				return nil
			}
			part := float64(share.Share)
			if memory != nil {
				part *= min(float64(*memory)/float64(*share.GPUMemory), 1)
			}
			p := api.Percent(math.Floor(part*100) / 100) // A share has two decimals.
			if most == nil || p < *most {
				most = &p
			}
		}
	}
	if most != nil && *most <= 0 {
		return nil
	}
	return most
}

// TakeOptions adds to a request the values of --gpu-memory and --gpu-share: less than the shards have, and never more. most is the largest
// share that it may have; nil: it is not known, and none is taken. It returns what is not taken, and why.
func TakeOptions(q *api.EngineRequest, shared bool, most *api.Percent, getenv func(string) string) (ignored []string) {
	ignore := func(variable, why string) { ignored = append(ignored, fmt.Sprintf("%s is ignored: %s", variable, why)) }
	if text := getenv(memoryVariable); text != "" {
		memory, err := api.ParseBytes(text)
		switch {
		case !isAmount(text) || err != nil:
			ignore(memoryVariable, fmt.Sprintf("%.40q is an invalid amount", text))
		case !shared:
			ignore(memoryVariable, "the job has no shared GPU")
		case q.GPUMemory != nil && memory > *q.GPUMemory:
			ignore(memoryVariable, fmt.Sprintf("%s is more than the %s of its shards", text, *q.GPUMemory))
		default:
			q.GPUMemory = &memory
		}
	}
	if text := getenv(shareVariable); text != "" {
		share, err := api.ParsePercent(text)
		switch {
		case !isShare(text) || err != nil:
			ignore(shareVariable, fmt.Sprintf("%.40q is an invalid share", text))
		case !shared:
			ignore(shareVariable, "the job has no shared GPU")
		case most == nil:
			ignore(shareVariable, "how much of the share of the grant its shards are is not known")
		case share > *most:
			ignored = append(
				ignored,
				fmt.Sprintf("%s is %s: the job has the %s that its shards are of the grant", shareVariable, text, *most),
			)
			q.Share = most
		default:
			q.Share = &share
		}
	}
	return ignored
}

// isAmount is true for what the plug-in writes: a number of MiB or GiB without a zero in front.
func isAmount(text string) bool {
	number, ok := strings.CutSuffix(text, "GiB")
	if !ok {
		number, ok = strings.CutSuffix(text, "MiB")
	}
	return ok && isNumber(number, 9)
}

// isShare is true for what the plug-in writes: 1% to 100%.
func isShare(text string) bool {
	number, ok := strings.CutSuffix(text, "%")
	return ok && (isNumber(number, 2) || number == "100")
}

// isNumber is true for at most so many digits without a zero in front.
func isNumber(text string, digits int) bool {
	return text != "" && len(text) <= digits && text[0] != '0' && strings.Trim(text, "0123456789") == ""
}
