package slurm

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// The variables of the SPANK plug-in, as a Prolog has them, and their forms. A user can set them without the plug-in.
const (
	memoryVariable = "SPANK_GPUSHARE_MEMORY"
	shareVariable  = "SPANK_GPUSHARE_SHARE"
)

// TakeOptions adds to a request the values of --gpu-memory and --gpu-share: less than the shards have, and never more. It returns
// what is not taken, and why.
func TakeOptions(q *api.EngineRequest, shared bool, getenv func(string) string) (ignored []string) {
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
