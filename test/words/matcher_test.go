package words

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// A phrase is a sequence of words, each with its alternatives.
type phrase [][]string

func newPhrase(text string) phrase {
	var p phrase
	for _, w := range strings.Fields(text) {
		p = append(p, strings.Split(w, "/"))
	}
	return p
}

// at reports whether a passage has the phrase from its i-th word on.
func (p phrase) at(words []word, i int) bool {
	if i < 0 || i+len(p) > len(words) {
		return false
	}
	for k, alternatives := range p {
		if !slices.Contains(alternatives, words[i+k].text) {
			return false
		}
	}
	return len(p) > 0
}

// An entry is a line of private.txt.
type entry struct {
	phrase        phrase
	names, prose  bool
	write, reason string
}

// An exception is a line of exceptions.txt: a place and the phrase that is right there.
type exception struct {
	line   string
	place  string // a file, a directory that ends in a slash, or * for every file
	phrase phrase
	used   bool
}

func (x *exception) in(p passage) bool {
	return (x.place == "*" || x.place == p.file || strings.HasSuffix(x.place, "/") && strings.HasPrefix(p.file, x.place))
}

// A finding is a private word that no exception covers.
type finding struct {
	entry *entry
	file  string
	line  int
	text  string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %q: write %q (%s)", f.file, f.line, f.text, f.entry.write, f.entry.reason)
}

// A matcher finds private words.
type matcher struct {
	entries    []*entry
	first      map[string][]*entry     // by the first word of the phrase
	exceptions map[string][]*exception // by each word of the phrase
	listed     []*exception
}

// rows returns the columns of each line of a table. Empty lines and lines that begin with # are comments.
func rows(file string, columns int) ([][]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out [][]string
	for i, line := range strings.Split(string(b), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "|")
		for k := range cells {
			cells[k] = strings.TrimSpace(cells[k])
		}
		if len(cells) != columns || slices.Contains(cells, "") {
			return nil, fmt.Errorf("%s:%d: want %d columns, separated by |", file, i+1, columns)
		}
		out = append(out, cells)
	}
	return out, nil
}

func newMatcher(private, exceptions [][]string) (*matcher, error) {
	m := &matcher{first: map[string][]*entry{}, exceptions: map[string][]*exception{}}
	seen := map[string]bool{}
	for _, row := range private {
		scope, key := row[0], row[0]+" "+row[1]
		e := &entry{phrase: newPhrase(row[1]), names: scope != "prose", prose: scope != "name", write: row[2], reason: row[3]}
		if !slices.Contains([]string{"any", "name", "prose"}, scope) {
			return nil, fmt.Errorf("%q has an unknown scope: write any, name or prose", key)
		}
		if key != strings.ToLower(key) || seen[key] {
			return nil, fmt.Errorf("%q is listed twice or has a capital", key)
		}
		seen[key] = true
		m.entries = append(m.entries, e)
		for _, w := range e.phrase[0] {
			m.first[w] = append(m.first[w], e)
		}
	}
	for _, row := range exceptions {
		x := &exception{line: strings.Join(row, " | "), place: row[0], phrase: newPhrase(row[1])}
		m.listed = append(m.listed, x)
		for _, alternatives := range x.phrase {
			for _, w := range alternatives {
				m.exceptions[w] = append(m.exceptions[w], x)
			}
		}
	}
	return m, nil
}

// find returns the private words of a passage.
func (m *matcher) find(p passage) []finding {
	var out []finding
	for i, w := range p.words {
		for _, e := range m.first[w.text] {
			if (p.name && !e.names) || (!p.name && !e.prose) || !e.phrase.at(p.words, i) || m.excepted(p, i, len(e.phrase)) {
				continue
			}
			var text []string
			for _, w := range p.words[i : i+len(e.phrase)] {
				text = append(text, w.text)
			}
			out = append(out, finding{entry: e, file: p.file, line: w.line, text: strings.Join(text, " ")})
		}
	}
	return out
}

// excepted reports whether an exception's phrase covers the n words from the i-th on.
func (m *matcher) excepted(p passage, i, n int) bool {
	excepted := false
	for _, x := range m.exceptions[p.words[i].text] {
		if !x.in(p) {
			continue
		}
		for from := i + n - len(x.phrase); from <= i; from++ {
			if x.phrase.at(p.words, from) {
				x.used, excepted = true, true
			}
		}
	}
	return excepted
}
