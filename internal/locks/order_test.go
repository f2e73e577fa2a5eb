package locks

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// ordered are the directories where every mutex has a level in the order.
var ordered = []string{
	"daemon", "internal/engine", "internal/observe", "internal/request", "internal/store", "isolation", "lease", "mps", "power",
}

func nameOf(r Ranked) string {
	_, name, _ := strings.Cut(fmt.Sprintf("%T", r), ".")
	return name
}

// Every level occurs once, says what it guards, and is the level of a mutex.
func TestOrder(t *testing.T) {
	used := map[string]int{}
	use := regexp.MustCompile(`locks\.Mutex\[locks\.(\w+)\]`)
	plain := regexp.MustCompile(`\bsync\.(RW)?Mutex\b`)
	for _, dir := range ordered {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if plain.Match(text) {
				t.Errorf("%s has a mutex without a level in the order: use locks.Mutex", path)
			}
			for _, m := range use.FindAllSubmatch(text, -1) {
				used[string(m[1])]++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	listed := map[string]bool{}
	for _, p := range Order {
		name := nameOf(p.Kind)
		switch {
		case listed[name]:
			t.Errorf("%s is in the order twice", name)
		case p.Guards == "":
			t.Errorf("the order does not say what %s guards", name)
		case used[name] == 0:
			t.Errorf("%s is in the order, and no mutex has that level", name)
		case used[name] > 1 && !strings.HasSuffix(name, "Leaf"):
			t.Errorf("%d mutexes are %s: only a leaf may have several", used[name], name)
		}
		listed[name] = true
	}
	for name := range used {
		if !listed[name] {
			t.Errorf("a mutex is %s, which has no level in the order", name)
		}
	}
}
