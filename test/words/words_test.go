package words

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestPrivateWords(t *testing.T) {
	private, err := rows("private.txt", 4)
	if err != nil {
		t.Fatal(err)
	}
	exceptions, err := rows("exceptions.txt", 3)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMatcher(private, exceptions)
	if err != nil {
		t.Fatal(err)
	}
	passages, err := tree(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(passages) < 20000 {
		t.Fatalf("only %d passages were read: the reading is broken", len(passages))
	}
	for _, p := range passages {
		for _, f := range m.find(p) {
			t.Error(f)
		}
	}
	for _, x := range m.listed {
		if !x.used {
			t.Errorf("exceptions.txt: %q excepts nothing: remove the line", x.line)
		}
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"setWall", "set wall"},
		{"SetWall", "set wall"},
		{"set_wall", "set wall"},
		{"SET_WALL", "set wall"},
		{"GPUGuard", "gpu guard"},
		{"guardGPUs", "guard gpus"},
		{"GPUs", "gpus"},
		{"PIDsOf", "pids of"},
		{"userID", "user id"},
		{"ask2nd", "ask nd"},
		{"firewall", "firewall"},
		{"gpushare-login-filter.service", "gpushare login filter service"},
		{"It is told. Nobody asks: why?\nYes", "it is told ␤ nobody asks why ␤ yes"},
		{"he's, or his", "he s or his"},
		{"a  b\tc", "a b c"},
		{"µs and Größe", "µs and größe"},
	} {
		var got []string
		for _, w := range split(c.text, 1) {
			if w.text == "" {
				w.text = "␤"
			}
			got = append(got, w.text)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%q is split into %q, want %q", c.text, s, c.want)
		}
	}
	lines := split("one\ntwo\n\nthree", 7)
	if len(lines) != 3 || lines[0].line != 7 || lines[1].line != 8 || lines[2].line != 10 {
		t.Errorf("the words are on the lines %v", lines)
	}
}

const goFile = `// Package walls is told.
package walls

import seat "a/leaver"

// Look observes.
type Look struct {
	Told string ` + "`json:\"kick_field\"`" + `
}

func (l *Look) askAll(gone int) (took int) {
	for poke, m := range x.Mended {
		bell := "the sick\nlane " + seat.Visitor // anew
		used.Census = bell
	}
	return m(poke, ` + "`one\ntwo`" + `)
}
`

func TestRead(t *testing.T) {
	for _, c := range []struct {
		file, text   string
		names, prose []string
	}{
		{
			file: "x/walls.go", text: goFile,
			names: []string{"1 walls", "2 walls", "4 seat", "7 look", "8 told", "11 l", "11 ask all", "11 gone", "11 took", "12 poke", "12 m", "13 bell"},
			prose: []string{"1 package walls is told", "6 look observes", "8 json kick field", "13 the sick lane", "13 anew", "16 one two"},
		},
		{
			file: "walls.sh", text: "#!/bin/sh\nseat=1\nleave_all() {\n\tfor his in a; do :; done\n}\n",
			names: []string{"1 walls", "2 seat", "3 leave all", "4 his"},
			prose: []string{"1 bin sh seat leave all for his in a do done"},
		},
		{file: "who-gets.md", text: "One\nis told.\n", names: []string{"1 who gets"}, prose: []string{"1 one is told"}},
		{file: "a.yaml", text: "x\x00"},
	} {
		got, err := read(c.file, []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		var names, prose []string
		for _, p := range got {
			var words []string
			for _, w := range p.words {
				if w.text != "" {
					words = append(words, w.text)
				}
			}
			s := fmt.Sprintf("%d %s", p.words[0].line, strings.Join(words, " "))
			if p.name {
				names = append(names, s)
			} else {
				prose = append(prose, s)
			}
		}
		slices.Sort(names)
		slices.Sort(prose)
		slices.Sort(c.names)
		slices.Sort(c.prose)
		if !slices.Equal(names, c.names) {
			t.Errorf("%s: the names are %q, want %q", c.file, names, c.names)
		}
		if !slices.Equal(prose, c.prose) {
			t.Errorf("%s: the prose is %q, want %q", c.file, prose, c.prose)
		}
	}
	if _, err := read("broken.go", []byte("package")); err == nil {
		t.Error("a file that is not Go has no error")
	}
}

func TestMatch(t *testing.T) {
	private := [][]string{
		{"any", "wall/walls", "isolation", "r"},
		{"name", "ask", "request", "r"},
		{"prose", "is/are told", "is reported", "r"},
	}
	exceptions := [][]string{
		{"*", "wall clock", "r"},
		{"vendor/", "walls", "r"},
		{"one.md", "who are told to", "r"},
	}
	for _, c := range []struct {
		file, text string
		name       bool
		excepted   bool
		want       string
	}{
		{file: "a.go", text: "setWall", name: true, want: `a.go:3: "wall": write "isolation" (r)`},
		{file: "a.go", text: "the walls", want: `a.go:3: "walls": write "isolation" (r)`},
		{file: "a.go", text: "firewall, walled", want: ""},
		{file: "a.go", text: "the wall clock", excepted: true, want: ""},
		{file: "a.go", text: "wallClock", name: true, excepted: true, want: ""},
		{file: "a.go", text: "wall, clock and wall", excepted: true, want: `a.go:3: "wall": write "isolation" (r)`},
		{file: "vendor/a.go", text: "walls", excepted: true, want: ""},
		{file: "vendor", text: "walls", want: `vendor:3: "walls": write "isolation" (r)`},
		{file: "a.go", text: "askAll", name: true, want: `a.go:3: "ask": write "request" (r)`},
		{file: "a.go", text: "they ask", want: ""},
		{file: "a.go", text: "it is\n// told", want: `a.go:3: "is told": write "is reported" (r)`},
		{file: "a.go", text: "as it is. Told", want: ""},
		{file: "a.go", text: "isTold", name: true, want: ""},
		{file: "one.md", text: "who are told to", excepted: true, want: ""},
		{file: "two.md", text: "who are told to", want: `two.md:3: "are told": write "is reported" (r)`},
		{file: "a.go", text: "is", want: ""},
	} {
		m, err := newMatcher(private, exceptions)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range m.find(passage{file: c.file, name: c.name, words: split(c.text, 3)}) {
			got = append(got, f.String())
		}
		if s := strings.Join(got, "\n"); s != c.want {
			t.Errorf("%s, %q: found %q, want %q", c.file, c.text, s, c.want)
		}
		if used := slices.ContainsFunc(m.listed, func(x *exception) bool { return x.used }); used != c.excepted {
			t.Errorf("%s, %q: an exception is used: %v", c.file, c.text, used)
		}
	}
	for _, bad := range [][]string{{"some", "x", "y", "r"}, {"any", "Wall", "y", "r"}, {"name", "ask", "y", "r"}} {
		if _, err := newMatcher(append(slices.Clone(private), bad), nil); err == nil {
			t.Errorf("the line %q has no error", bad)
		}
	}
}
