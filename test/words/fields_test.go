package words

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fields returns the JSON fields of the struct types of a package, each with the place of one declaration.
func fields(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if !ok || field.Tag == nil {
				return true
			}
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				return true
			}
			if name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ","); name != "" && name != "-" {
				out[name] = fmt.Sprintf("%s:%d", strings.TrimPrefix(file, root+"/"), set.Position(field.Pos()).Line)
			}
			return true
		})
	}
	return out, nil
}

var (
	rowStart = regexp.MustCompile("(?m)^\\| *((?:`[^`]+`[, ]*)+)\\|")
	quoted   = regexp.MustCompile("`([^`]+)`")
	fieldish = regexp.MustCompile(`[a-z][a-z0-9_]*`)
	jsonKey  = regexp.MustCompile(`"([a-z0-9_]+)":`)
)

// firstCells returns what is quoted in the first cell of each row of the tables of a page: "| `a`, `b` | … |".
func firstCells(page string) []string {
	var out []string
	for _, m := range rowStart.FindAllStringSubmatch(page, -1) {
		for _, q := range quoted.FindAllStringSubmatch(m[1], -1) {
			out = append(out, q[1])
		}
	}
	return out
}

// mentioned returns the field names that a page gives in quotes or in an example: `a.b`, "a":.
func mentioned(page string) []string {
	var out []string
	for _, q := range quoted.FindAllStringSubmatch(page, -1) {
		out = append(out, fieldish.FindAllString(q[1], -1)...)
	}
	for _, m := range jsonKey.FindAllStringSubmatch(page, -1) {
		out = append(out, m[1])
	}
	return out
}

func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// Every JSON field of the API and of the command line has a row in docs/glossary.md or docs/spec.md, or is named in
// docs/api.md; and every field in the glossary exists. A row of the glossary for a field begins with its name in backquotes.
func TestEveryFieldIsExplained(t *testing.T) {
	all := map[string]string{}
	for dir, least := range map[string]int{"api": 150, "internal/cli": 40} {
		found, err := fields(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) < least {
			t.Fatalf("only %d fields were found in %s: the reading is broken", len(found), dir)
		}
		maps.Copy(all, found)
	}
	glossary := firstCells(page(t, "docs/glossary.md"))
	known := map[string]bool{}
	for _, name := range slices.Concat(glossary, mentioned(page(t, "docs/api.md"))) {
		known[name] = true
	}
	for _, key := range firstCells(page(t, "docs/spec.md")) {
		for _, part := range fieldish.FindAllString(key, -1) {
			known[part] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !known[name] {
			t.Errorf(
				"%s: the field %q has no row in docs/glossary.md or docs/spec.md and is not named in docs/api.md: add \"| `%s` | meaning |\" to the glossary",
				all[name],
				name,
				name,
			)
		}
	}
	for _, name := range glossary {
		if all[name] == "" {
			t.Errorf("docs/glossary.md has a row for the field %q, which does not exist", name)
		}
	}
}

func TestFields(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.go":      "package a\n\ntype T struct {\n\tA int `json:\"a_b,omitempty\"`\n\tB []struct{ C int `json:\"c\"` }\n\tD int `json:\"-\"`\n\tE int\n}\n",
		"a_test.go": "package a\n\ntype U struct {\n\tF int `json:\"f\"`\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := fields(dir)
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"a_b", "c"}) || !strings.HasSuffix(got["a_b"], "a.go:4") {
		t.Errorf("the fields are %v, want a_b at a.go:4 and c", got)
	}
	if got := firstCells("| `a` | x `y` |\n| `b.c`, `d` | z |\n| word | `e` |\n"); !slices.Equal(got, []string{"a", "b.c", "d"}) {
		t.Errorf("the first cells are %q", got)
	}
	if got := mentioned("the `a.b[]` of {\"c_d\": 1} and e"); !slices.Equal(got, []string{"a", "b", "c_d"}) {
		t.Errorf("mentioned are %q", got)
	}
}
