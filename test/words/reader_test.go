package words

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const root = "../.."

// A word is one lowercase word and the line that it is on. An empty text separates sentences: no phrase matches across it.
type word struct {
	text string
	line int
}

// A passage is a sequence of words that belong together: an identifier, a comment, a string or a page.
type passage struct {
	file  string
	name  bool // an identifier or the name of a file
	words []word
}

// extensions are the kinds of file that are read, and named are further files without an extension.
var (
	extensions = []string{
		".go",
		".md",
		".sh",
		".yaml",
		".yml",
		".txt",
		".service",
		".socket",
		".slice",
		".conf",
		".want",
		".c",
		".h",
		".py",
		".pl",
	}
	named   = []string{"Makefile", ".ci/run", "packaging/scripts/prerm"}
	skipped = []string{".git", "bin", "build", "testdata/gpus", "test/words"}
)

// tree reads every file of the repository that has words.
func tree(top string) ([]passage, error) {
	var all []passage
	err := filepath.WalkDir(top, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file, err := filepath.Rel(top, full)
		if err != nil {
			return err
		}
		if slices.Contains(skipped, file) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			all = append(all, passage{file: file, name: true, words: split(path.Base(file), 1)})
			return nil
		}
		if !d.Type().IsRegular() || !slices.Contains(extensions, path.Ext(file)) && !slices.Contains(named, file) {
			return nil
		}
		b, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		found, err := read(file, b)
		all = append(all, found...)
		return err
	})
	return all, err
}

// read returns the passages of one file.
func read(file string, b []byte) ([]passage, error) {
	if bytes.IndexByte(b, 0) >= 0 {
		return nil, nil
	}
	out := []passage{{file: file, name: true, words: split(strings.TrimSuffix(path.Base(file), path.Ext(file)), 1)}}
	switch path.Ext(file) {
	case ".go":
		found, err := readGo(file, b)
		return append(out, found...), err
	case ".sh":
		out = append(out, readShell(file, b)...)
	}
	return append(out, passage{file: file, words: split(string(b), 1)}), nil
}

// readGo returns the identifiers that a file declares, its comments and its strings. Identifiers that it only uses are
// declared elsewhere, perhaps in another module.
func readGo(file string, b []byte) ([]passage, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, b, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("cannot read identifiers: %w", err)
	}
	var out []passage
	declare := func(list ...*ast.Ident) {
		for _, id := range list {
			if id != nil && id.Name != "_" {
				out = append(out, passage{file: file, name: true, words: split(id.Name, set.Position(id.Pos()).Line)})
			}
		}
	}
	expressions := func(tok token.Token, list ...ast.Expr) {
		for _, e := range list {
			if id, ok := e.(*ast.Ident); ok && tok == token.DEFINE {
				declare(id)
			}
		}
	}
	paths := map[*ast.BasicLit]bool{}
	declare(f.Name)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			declare(n.Name)
			paths[n.Path] = true
		case *ast.FuncDecl:
			declare(n.Name)
		case *ast.TypeSpec:
			declare(n.Name)
		case *ast.ValueSpec:
			declare(n.Names...)
		case *ast.Field:
			declare(n.Names...)
		case *ast.LabeledStmt:
			declare(n.Label)
		case *ast.AssignStmt:
			expressions(n.Tok, n.Lhs...)
		case *ast.RangeStmt:
			expressions(n.Tok, n.Key, n.Value)
		case *ast.BasicLit:
			if n.Kind != token.STRING || paths[n] {
				break
			}
			line := set.Position(n.Pos()).Line
			text, err := strconv.Unquote(n.Value)
			if err != nil {
				text = n.Value
			}
			words := split(text, line)
			if n.Value[0] == '"' { // Its line breaks are escapes.
				for i := range words {
					words[i].line = line
				}
			}
			out = append(out, passage{file: file, words: words})
		}
		return true
	})
	for _, group := range f.Comments {
		var text strings.Builder
		for _, c := range group.List {
			text.WriteString(c.Text + "\n")
		}
		out = append(out, passage{file: file, words: split(text.String(), set.Position(group.Pos()).Line)})
	}
	return out, nil
}

var shellName = regexp.MustCompile(`(?m)^[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*(?:\(\)|=)|\bfor ([A-Za-z_][A-Za-z0-9_]*) in\b`)

// readShell returns the functions and variables that a script declares.
func readShell(file string, b []byte) []passage {
	var out []passage
	for _, m := range shellName.FindAllSubmatchIndex(b, -1) {
		at, end := m[2], m[3]
		if at < 0 {
			at, end = m[4], m[5]
		}
		out = append(out, passage{file: file, name: true, words: split(string(b[at:end]), 1+bytes.Count(b[:at], []byte("\n")))})
	}
	return out
}

// split returns the words of a text, which begins on the given line. An identifier is split at underscores and capitals.
func split(text string, line int) []word {
	var out []word
	runes := []rune(text)
	ends := false // A mark that ends a sentence or a cell of a table was read: whitespace after it separates.
	for i := 0; i < len(runes); {
		r := runes[i]
		if !unicode.IsLetter(r) {
			if r == '\n' {
				line++
			}
			if unicode.IsSpace(r) && ends {
				out = append(out, word{line: line})
			}
			ends = strings.ContainsRune(".;!?|", r)
			i++
			continue
		}
		ends = false
		n := wordLength(runes[i:])
		out = append(out, word{text: strings.ToLower(string(runes[i : i+n])), line: line})
		i += n
	}
	return out
}

// wordLength is the length of the first word of an identifier: one of "guard", "Guard", "GPU" and "GPUs".
func wordLength(r []rune) int {
	lower := func(i int) bool { return i < len(r) && unicode.IsLetter(r[i]) && !unicode.IsUpper(r[i]) }
	upper := func(i int) bool { return i < len(r) && unicode.IsUpper(r[i]) }
	n := 1
	switch {
	case !upper(0) || lower(1): // guard, Guard
		for lower(n) {
			n++
		}
		return n
	}
	for upper(n) {
		n++
	}
	switch {
	case lower(n) && r[n] == 's' && !lower(n+1): // GPUs
		return n + 1
	case lower(n): // GPUGuard: the last capital begins the next word.
		return n - 1
	}
	return n
}
