package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestShortCommand(t *testing.T) {
	long := strings.Repeat("ä", 1<<19)
	for name, c := range map[string]struct {
		argv []string
		most int
		want string // joined with a bar; empty: only the size matters
	}{
		"short":          {[]string{"python", "train.py"}, 100, "python|train.py"},
		"exactly":        {[]string{"python", "train.py"}, 16, "python|train.py"},
		"one too many":   {[]string{"python", "train.py", strings.Repeat("x", 20)}, 36, "python|train.py|… (cut, 37 bytes)"},
		"long":           {[]string{"sh", "-c", long}, KeptCommand, ""},
		"many":           {strings.Split(strings.Repeat("x ", 1<<19), " "), KeptCommand, ""},
		"empty ones":     {make([]string, 1<<20), KeptCommand, ""},
		"no command":     {nil, 10, ""},
		"first too long": {[]string{long}, 200, ""},
	} {
		got := ShortCommand(c.argv, c.most)
		joined := strings.Join(got, "|")
		if c.want != "" && joined != c.want {
			t.Errorf("%s: %q, want %q", name, joined, c.want)
		}
		if len(joined) > c.most || len(got) > maxKeptArguments || !utf8.ValidString(joined) {
			t.Errorf("%s: %d bytes, %d arguments", name, len(joined), len(got))
		}
		if cut := len(strings.Join(c.argv, " ")) >= c.most; cut != strings.Contains(joined, "… (cut, ") {
			t.Errorf("%s: %q does not say whether it was cut", name, joined)
		}
	}
}
