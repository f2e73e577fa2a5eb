package procfstest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Umask reads the mask of this process. umask(2) returns it only while it sets another, with which the tests that run in parallel would
// create files that everybody may write.
func Umask(tb testing.TB) (mask int) {
	tb.Helper()
	b, err := boundedread.Trusted("/proc/self/status", boundedread.Status)
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			if _, err := fmt.Sscanf(v, "%o", &mask); err != nil {
				tb.Fatal(err)
			}
			return mask
		}
	}
	tb.Fatal("the kernel reports no umask")
	return 0
}
