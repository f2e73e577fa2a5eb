package spec_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/internal/spec"
)

func TestLost(t *testing.T) {
	text := func(words string) string {
		if words == "" {
			return ""
		}
		return strings.ReplaceAll(words, " ", "\n") + "\n"
	}
	for name, c := range map[string]struct {
		base, current, next string
		want                []string
	}{
		"nothing was changed":           {"a b c", "a b c", "a x c", nil},
		"a line was added":              {"a b c", "a b new c", "a x c", []string{"+ new"}},
		"and the new spec has it":       {"a b c", "a b new c", "a x new c", nil},
		"a line was removed":            {"a b c", "a c", "a b c", []string{"- b"}},
		"and the new spec lacks it":     {"a b c", "a c", "a x c", nil},
		"a line was changed":            {"a b c", "a B c", "a b c d", []string{"- b", "+ B"}},
		"both changed the same line":    {"a b c", "a B c", "a X c", []string{"+ B"}},
		"both changed it alike":         {"a b c", "a B c", "a B c", nil},
		"equal lines":                   {"t g t g", "t g g t g", "t g t g", []string{"+ g"}},
		"all was removed":               {"a b", "", "a b", []string{"- a", "- b"}},
		"a line was moved, and is back": {"a b c", "b c a", "a b c", []string{"- a", "+ a"}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, spec.Lost(text(c.base), text(c.current), text(c.next))); d != "" {
				t.Error(d)
			}
		})
	}
}
