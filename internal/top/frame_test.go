package top

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/golden"
)

// The screen at the sizes that people have. -update writes the files: then read the difference.
func TestFrames(t *testing.T) {
	for _, size := range [][2]int{{200, 50}, {120, 40}, {80, 24}, {60, 12}, {59, 12}, {20, 2}} {
		for _, view := range []View{Leases, GPUs, Tenants, Users, Processes} {
			if size[0] < 80 && view != Leases {
				continue
			}
			name := fmt.Sprintf("%dx%d-%s", size[0], size[1], view)
			t.Run(name, func(t *testing.T) {
				m := labModel()
				m.View = view
				golden.File(t, "testdata/"+name+".txt", m.Frame(size[0], size[1], noon.Add(time.Second)).Text())
			})
		}
	}
}
