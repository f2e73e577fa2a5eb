package miglisting

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/internal/board"
)

// nvml.h numbers the profiles by their slices and attributes (NVML_GPU_INSTANCE_PROFILE_…). A listing has only the ids of the
// board. The second profile with the same ones is the revision with more memory.
var numbers = map[string][]uint32{
	"1": {0, 9}, "2": {1}, "3": {2}, "4": {3}, "7": {4}, "8": {5}, "6": {6},
	"1me": {7}, "2me": {8}, "1gfx": {10}, "2gfx": {11}, "4gfx": {12},
	"1-me": {13}, "2-me": {14}, "1me.all": {15}, "2me.all": {16},
}

// unnumbered is the first number for profiles that nvml.h of the time of writing does not have.
const unnumbered = 32

// enums returns a function that numbers profiles, the smaller first, each number once.
func enums() func(*board.Profile) uint32 {
	used, next := map[string]int{}, uint32(unnumbered)
	return func(p *board.Profile) uint32 {
		key := fmt.Sprint(p.Slices) + strings.Join(p.Attributes, "+")
		n := used[key]
		used[key]++
		if list := numbers[key]; n < len(list) {
			return list[n]
		}
		next++
		return next - 1
	}
}
