package documents

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Document is what a page says to do, in its order.
type Document struct {
	Node   string // the virtual node of its commands, in testdata/nodes
	Blocks []Block
}

// Place is where the commands of a block run.
type Place int

// The places. A block without a directive runs in both of the first two.
const (
	Everywhere Place = iota // on the virtual node and on the virtual machine
	RealHost                // on the virtual machine only
	RunBy                   // in the test that Why names
	NotRun                  // nowhere, because of Why
)

// Block is one block of a page: a file that the reader writes, or commands with what they print.
type Block struct {
	Line     int
	Language string
	Reader   string   // the user who types the commands; empty: root
	First    []string // commands that prepare it and that a reader does not see
	File     string   // the name under which the reader writes its text
	Text     string   // of a block in a language other than console
	Place    Place
	Why      string // why it does not run on the virtual node
	Commands []Step
}

// Step is one command of a block.
type Step struct {
	Line   int
	Text   string
	Output []string // lines, in which "…" is any text, and a line "…" any lines
	Code   int
}

// directive is a comment that says what to do with the next block. Readers do not see it.
var directive = regexp.MustCompile(`^<!-- (real host|run by|not run|node|reader|file|first)(?:: (.*))? -->$`)

// exits is the last line of the output of a command that fails.
var exits = regexp.MustCompile(`^\[exit code ([0-9]+)\]$`)

// Parse reads the blocks of a page.
func Parse(text string) (Document, error) {
	p := Document{Node: "dgx-a100.yaml"}
	var next Block
	var in *Block
	reader := ""
	for i, line := range strings.Split(text, "\n") {
		m := directive.FindStringSubmatch(line)
		switch {
		case in != nil && line == "```":
			p.Blocks = append(p.Blocks, *in)
			in = nil
		case in != nil && in.Language == "console":
			if err := in.addLine(line, i+1); err != nil {
				return p, fmt.Errorf("line %d: %w", i+1, err)
			}
		case in != nil:
			in.Text += line + "\n"
		case strings.HasPrefix(line, "```"):
			b := next
			b.Line, b.Language, b.Reader = i+1, line[3:], reader
			in, next = &b, Block{}
		case m != nil && m[1] == "node":
			p.Node = m[2]
		case m != nil && m[1] == "reader":
			reader = m[2]
		case m != nil:
			next.direct(m[1], m[2])
		case line != "":
			next = Block{First: next.First}
		}
	}
	if in != nil {
		return p, errors.New("the last block has no end")
	}
	return p, nil
}

// direct takes a directive about the block.
func (b *Block) direct(name, value string) {
	switch name {
	case "real host":
		b.Place, b.Why = RealHost, value
	case "run by":
		b.Place, b.Why = RunBy, value
	case "not run":
		b.Place, b.Why = NotRun, value
	case "file":
		b.File = value
	case "first":
		b.First = append(b.First, value)
	}
}

// addLine adds a line of a console block.
func (b *Block) addLine(line string, number int) error {
	if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "# ") {
		b.Commands = append(b.Commands, Step{Line: number, Text: line[2:]})
		return nil
	}
	if len(b.Commands) == 0 {
		return errors.New("a console block begins with a command")
	}
	c := &b.Commands[len(b.Commands)-1]
	if m := exits.FindStringSubmatch(line); m != nil {
		_, err := fmt.Sscan(m[1], &c.Code)
		return err
	}
	c.Output = append(c.Output, line)
	return nil
}

// Difference returns what of the documented output is not in what was got, in this order; empty if nothing.
func (c *Step) Difference(got string) string {
	lines := strings.Split(strings.TrimRight(got, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	skip := false
	for _, want := range c.Output {
		want = strings.TrimRight(want, " ")
		if want == "…" {
			skip = true
			continue
		}
		parts := strings.Split(want, "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		for skip && len(lines) > 0 && !pattern.MatchString(lines[0]) {
			lines = lines[1:]
		}
		if len(lines) == 0 || !pattern.MatchString(lines[0]) {
			return want
		}
		lines, skip = lines[1:], false
	}
	if len(c.Output) > 0 && !skip && len(lines) > 0 {
		return "no more than that: " + lines[0]
	}
	return ""
}
