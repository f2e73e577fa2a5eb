package text

import (
	"strings"
	"testing"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	const output = "ä\x1b]0;title\a\x1b[2Jb\u009bc\x9bd\x7f\r\n\t€"
	const want = "ä^[]0;title^G^[[2Jb\\u009bc\\x9bd^?\r\n\t€"
	for _, size := range []int{1, 2, 3, len(output)} { // A character may come in parts.
		var to strings.Builder
		v := &Visible{To: &to}
		for rest := output; rest != ""; {
			n := min(size, len(rest))
			if written, err := v.Write([]byte(rest[:n])); written != n || err != nil {
				t.Fatal(written, err)
			}
			rest = rest[n:]
		}
		if to.String() != want {
			t.Errorf("in parts of %d: %q, want %q", size, to.String(), want)
		}
	}
}
