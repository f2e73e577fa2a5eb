package procfstest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Cgroups are the cgroups of a process by hierarchy, as /proc/PID/cgroup names it. The numbers of the hierarchies are left out: what is
// unmounted and mounted again has another one.
type Cgroups map[string]string

// CgroupsOf reads the cgroups of a process.
func CgroupsOf(tb testing.TB, pid int) Cgroups {
	tb.Helper()
	b, err := boundedread.Trusted(fmt.Sprintf("/proc/%d/cgroup", pid), boundedread.Process)
	if err != nil {
		tb.Fatal(err)
	}
	return parseCgroups(string(b))
}

func parseCgroups(file string) Cgroups {
	found := Cgroups{}
	for line := range strings.Lines(file) {
		_, in, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		kind, at, _ := strings.Cut(in, ":")
		found[kind] = at
	}
	return found
}

// Changed says what the process would see of something that moved it, or that mounted a hierarchy as earlier versions of gpushare did;
// empty: nothing. Hierarchies of version 1 are of the whole host: others mount one meanwhile, at whose top every process is then, and
// unmount one.
func (c Cgroups) Changed(now Cgroups) string {
	for kind, at := range now {
		was, known := c[kind]
		former := kind == "name=gpushare" || kind == "name=gpushare-moves"
		if known && was != at || !known && (at != "/" || former) {
			return fmt.Sprintf("the cgroup of hierarchy %q was %q and is %q", kind, was, at)
		}
	}
	return ""
}
