package tools

import (
	"strings"
	"testing"
)

func TestAScreenShowsWhatIsWrittenToIt(t *testing.T) {
	for name, c := range map[string]struct {
		writes []string
		want   string
	}{
		"text":              {[]string{"GPU 0\r\nGPU 1"}, "GPU 0\nGPU 1"},
		"at a place":        {[]string{"\x1b[2;3Hused"}, "\n  used"},
		"over what was":     {[]string{"12 %\x1b[1;2H7"}, "17 %"},
		"cleared":           {[]string{"old\x1b[H\x1b[2Jnew"}, "new"},
		"cut in a sequence": {[]string{"\x1b", "[1;", "4Hx"}, "   x"},
		"cut in a letter":   {[]string{"34\xc2", "\xb0C"}, "34°C"},
		"a full line":       {[]string{strings.Repeat("x", columns), "y"}, strings.Repeat("x", columns) + "\ny"},
		"and then a place":  {[]string{strings.Repeat("x", columns), "\x1b[1;1Hy"}, "y" + strings.Repeat("x", columns-1)},
	} {
		t.Run(name, func(t *testing.T) {
			var s Screen
			for _, w := range c.writes {
				if n, err := s.Write([]byte(w)); n != len(w) || err != nil {
					t.Fatalf("wrote %d of %q: %v", n, w, err)
				}
			}
			if got := s.String(); got != c.want {
				t.Errorf("shows %q, want %q", got, c.want)
			}
		})
	}
}

func TestAScreenSaysWhatItCannotShow(t *testing.T) {
	for name, w := range map[string]string{
		"colour": "\x1b[1m", "tabulator": "a\tb", "another sequence": "\x1b(B", "no such place": "\x1b[41;1H",
	} {
		t.Run(name, func(t *testing.T) {
			var s Screen
			if _, err := s.Write([]byte(w)); err == nil {
				t.Errorf("took %q and shows %q", w, s.String())
			}
		})
	}
}
