package kubelet_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/gpushare/gpushare/"

// imports are what each package may import of gpushare. The driver is a client of the socket: it must not reach a GPU, a library of the
// driver, or the state of gpushared in another way.
var imports = map[string][]string{
	"publish":              {"api", "lease"},
	"health":               {"api", "kubelet/publish"},
	"claims":               {"api", "internal/boundedread", "internal/durable", "internal/faultpoint", "internal/locks", "kubelet/publish"},
	"pods":                 {},
	"plugin":               {"api", "internal/locks", "kubelet/claims", "kubelet/health", "kubelet/pods", "kubelet/publish"},
	"cmd/gpushare-kubelet": {"api", "client", "internal/version", "kubelet/claims", "kubelet/plugin", "kubelet/pods", "kubelet/publish"},
}

// pure are the packages that decide: nothing that reads a file, the network or a clock.
var pure = []string{"publish", "health"}

func TestImports(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		allowed, known := imports[dir]
		if !known {
			t.Errorf("package %s has no row", dir)
		}
		seen[dir] = true
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if own, ok := strings.CutPrefix(path, module); ok && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s", file, own)
			}
			if slices.Contains(pure, dir) &&
				slices.Contains([]string{"os", "net", "net/http", "io/fs", "k8s.io/client-go/kubernetes"}, path) {
				t.Errorf("%s decides, and imports %s", file, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for dir := range imports {
		if !strings.Contains(string(text), "| `kubelet/"+dir+"` |") {
			t.Errorf("ARCHITECTURE.md has no row for kubelet/%s", dir)
		}
		if !seen[dir] {
			t.Errorf("there is no package %s", dir)
		}
	}
}
