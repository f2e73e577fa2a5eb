package docs

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// document is what a document of the documentation says to do, in its order.
type document struct {
	node   string // the virtual node of its commands, in testdata/nodes
	blocks []block
}

// block is one block of a document: a file that the reader writes, or commands with what they print.
type block struct {
	line     int
	first    []string // commands that prepare it and that a reader does not see
	file     string   // the name under which the reader writes its text
	text     string
	realHost bool // it needs what the virtual node lacks
	commands []step
}

// step is one command of a block.
type step struct {
	line   int
	text   string
	output []string // lines, in which "…" is any text, and a line "…" any lines
	code   int
}

// directive is a comment that says what to do with the next block. Readers do not see it.
var directive = regexp.MustCompile(`^<!-- (real host|node|file|first)(?:: (.*))? -->$`)

// exits is the last line of the output of a command that fails.
var exits = regexp.MustCompile(`^\[exit code ([0-9]+)\]$`)

// parseDocument reads the blocks of a document. Blocks in a language other than console are read only if they have a file name.
func parseDocument(text string) (document, error) {
	p := document{node: "dgx-a100.yaml"}
	var next block
	var in *block
	language := ""
	for i, line := range strings.Split(text, "\n") {
		m := directive.FindStringSubmatch(line)
		switch {
		case in != nil && line == "```":
			if language == "console" || in.file != "" {
				p.blocks = append(p.blocks, *in)
			}
			in = nil
		case in != nil && language == "console":
			if err := in.addLine(line, i+1); err != nil {
				return p, fmt.Errorf("line %d: %w", i+1, err)
			}
		case in != nil:
			in.text += line + "\n"
		case strings.HasPrefix(line, "```"):
			language = line[3:]
			b := next
			b.line = i + 1
			in, next = &b, block{}
		case m != nil && m[1] == "node":
			p.node = m[2]
		case m != nil && m[1] == "real host":
			next.realHost = true
		case m != nil && m[1] == "file":
			next.file = m[2]
		case m != nil:
			next.first = append(next.first, m[2])
		case line != "":
			next = block{first: next.first}
		}
	}
	if in != nil {
		return p, errors.New("the last block has no end")
	}
	return p, nil
}

// addLine adds a line of a console block.
func (b *block) addLine(line string, number int) error {
	if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "# ") {
		b.commands = append(b.commands, step{line: number, text: line[2:]})
		return nil
	}
	if len(b.commands) == 0 {
		return errors.New("a console block begins with a command")
	}
	c := &b.commands[len(b.commands)-1]
	if m := exits.FindStringSubmatch(line); m != nil {
		_, err := fmt.Sscan(m[1], &c.code)
		return err
	}
	c.output = append(c.output, line)
	return nil
}

// difference returns what of the documented output is not in what was got, in this order; empty if nothing.
func (c *step) difference(got string) string {
	lines := strings.Split(strings.TrimRight(got, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	skip := false
	for _, want := range c.output {
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
	if len(c.output) > 0 && !skip && len(lines) > 0 {
		return "no more than that: " + lines[0]
	}
	return ""
}
