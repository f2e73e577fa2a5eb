package docs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
)

// shippedSpecs are the whole specs that an administrator may copy, by where they are: examples, blocks of pages and man pages, and those in
// the documentation of Ansible modules.
func shippedSpecs(t *testing.T) map[string]*api.Spec {
	t.Helper()
	out := map[string]*api.Spec{}
	add := func(where, text string) {
		s, err := spec.Decode(where, []byte(text))
		if err != nil {
			t.Errorf("%s is refused: %v", where, err)
			return
		}
		out[where] = s
	}
	examples, err := filepath.Glob(filepath.Join(root, "examples", "*.yaml"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples were found: %v", err)
	}
	for _, f := range examples {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		add(strings.TrimPrefix(f, root+"/"), string(b))
	}
	for _, name := range documentNames(t) {
		for _, b := range document(t, name).Blocks {
			if b.Language == "yaml" && firstKey(t, b.Text) == "version" && !strings.Contains(b.Text, "mig-configs:") {
				add(fmt.Sprintf("%s:%d", name, b.Line), b.Text)
			}
		}
	}
	return out
}

// Who copies a spec from here has a node that is closed: no login reaches a managed GPU without a lease, and a limit of GPU memory is one.
// A spec without GPUs is a part of one.
func TestShippedSpecsAreSafe(t *testing.T) {
	whole, limited := 0, 0
	for where, s := range shippedSpecs(t) {
		s.Normalize()
		if len(s.GPUs) == 0 {
			continue
		}
		whole++
		if s.Node.Isolation.Logins != api.LoginsClosed {
			t.Errorf("%s: logins have access to managed GPUs: write isolation: {logins: closed}", where)
		}
		for i := range s.Tenants {
			tenant := &s.Tenants[i]
			limited++
			if o := tenant.Overuse.GPUMemory; o != "kill" && o != "freeze" {
				t.Errorf("%s: GPU memory of tenant %s is only reported: overuse.gpu_memory is %s", where, tenant.Name, o)
			}
		}
	}
	if whole < 7 || limited < 10 {
		t.Errorf("only %d specs with %d tenants were found: the reading is broken", whole, limited)
	}
}

// Specs that are no block of a page: in commands, in the examples of modules, in man pages. A line of them that enforces closes logins too.
func TestShippedLinesAreSafe(t *testing.T) {
	files := []string{"README.md", "ansible/plugins/modules/spec.py", "ansible/plugins/modules/tenant.py", "ansible/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/maintainers/*.md", "packaging/man/*.md", "packaging/etc/*", "internal/cli/*.go", "ansible/roles/node/*/*.yml"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("nothing is %s: %v", pattern, err)
		}
		for _, f := range found {
			if !strings.HasSuffix(f, "_test.go") {
				files = append(files, strings.TrimPrefix(f, root+"/"))
			}
		}
	}
	enforces := regexp.MustCompile(`(?m)(?:^|[^\x60'])node: *\{[^\n]*enforce: *"?on"?[^\n]*`) // Not a key in a sentence.
	seen := 0
	for _, name := range files {
		for _, line := range enforces.FindAll([]byte(read(t, name)), -1) {
			seen++
			if !bytes.Contains(line, []byte("logins: closed")) {
				t.Errorf("%s: a spec that enforces leaves logins open: %s", name, line)
			}
		}
	}
	if seen < 4 {
		t.Errorf("only %d lines were found: the reading is broken", seen)
	}
}
