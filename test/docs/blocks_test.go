package docs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/documents"
)

// documentFiles are the files of docs/: those for users, and those for maintainers.
func documentFiles(t *testing.T) (files []string) {
	t.Helper()
	for _, dir := range []string{"docs", "docs/maintainers"} {
		found, err := filepath.Glob(filepath.Join(root, dir, "*.md"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s has %d pages, %v", dir, len(found), err)
		}
		files = append(files, found...)
	}
	return files
}

// documentNames are the README and the pages.
func documentNames(t *testing.T) []string {
	t.Helper()
	names := []string{"README.md"}
	for _, f := range documentFiles(t) {
		names = append(names, strings.TrimPrefix(f, root+"/"))
	}
	return names
}

// document reads the blocks of a page.
func document(t *testing.T, name string) documents.Document {
	t.Helper()
	p, err := documents.Parse(read(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return p
}

// generatedDocument is written from the commands themselves, and its examples with them: TestCommandLineIsCurrent, and TestExamplesAreRead of internal/cli.
const generatedDocument = "docs/cli.md"

// reasons are why a block may run nowhere.
var reasons = map[string]string{
	"a GPU":              "no test has one",
	"a driver of NVIDIA": "the virtual machine has the virtual driver",
	"dcgm-exporter":      "it needs a GPU, and is not packaged for Debian",
}

// Every block of every page is run by a test or read by one: commands on the virtual node and on the virtual machine, YAML by its reader
// (TestYAMLBlocks). Others name the test that does, or a reason from the list.
func TestEveryBlockIsRun(t *testing.T) {
	walked := walkedDocuments(t)
	used := map[string]bool{}
	places := map[documents.Place]int{}
	for _, name := range documentNames(t) {
		if name == generatedDocument {
			continue
		}
		p := document(t, name)
		commands := false
		for i := range p.Blocks {
			b := &p.Blocks[i]
			switch {
			case b.Place == documents.RunBy:
				if why := unknownTest(t, b.Why); why != "" {
					t.Errorf("%s:%d: %q: %s", name, b.Line, b.Why, why)
				}
			case b.Place == documents.NotRun:
				if used[b.Why] = true; reasons[b.Why] == "" {
					t.Errorf(
						"%s:%d: it is not run because of %q, which is none of %q", name, b.Line, b.Why,
						slices.Sorted(maps.Keys(reasons)),
					)
				}
			case b.Language == "yaml":
				continue
			case b.Language != "console":
				t.Errorf(
					"%s:%d: nothing runs a block of %q: write its commands as console, or a comment 'run by' or 'not run' before it",
					name, b.Line, b.Language,
				)
			case b.Place == documents.RealHost && b.Why == "":
				t.Errorf("%s:%d: it does not say why it needs a real host", name, b.Line)
			default:
				commands = true
			}
			places[b.Place] += len(b.Commands)
		}
		if commands && !slices.Contains(walked, name) {
			t.Errorf("%s has commands, and phase documents of test/vm does not walk through it", name)
		}
	}
	for reason := range reasons {
		if !used[reason] {
			t.Errorf("no block has the reason %q", reason)
		}
	}
	t.Logf("%d commands run on the virtual node and on the virtual machine, %d on the virtual machine only, %d in another test, %d nowhere",
		places[documents.Everywhere], places[documents.RealHost], places[documents.RunBy], places[documents.NotRun])
}

// walkedDocuments are the pages that the virtual machine walks through: the checks of the phase with the name of a page.
func walkedDocuments(t *testing.T) []string {
	t.Helper()
	const phase = "test/vm/guest/phases/documents.sh"
	m := regexp.MustCompile(`(?m)^# checks: (.*)$`).FindStringSubmatch(read(t, phase))
	if m == nil {
		t.Fatalf("%s has no list of checks", phase)
	}
	var walked []string
	for check := range strings.FieldsSeq(m[1]) {
		if check == "README" {
			walked = append(walked, "README.md")
		} else {
			walked = append(walked, "docs/"+check+".md")
		}
	}
	return walked
}

// unknownTest returns why a directive names no test: it has a directory and a function there, or the file of a phase of test/vm.
func unknownTest(t *testing.T, where string) string {
	t.Helper()
	path, word, _ := strings.Cut(where, " ")
	info, err := os.Stat(filepath.Join(root, path))
	switch {
	case err != nil:
		return err.Error()
	case !info.IsDir():
		return ""
	case word == "":
		return "it names a directory and no test"
	}
	files, err := filepath.Glob(filepath.Join(root, path, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.Contains(read(t, strings.TrimPrefix(f, root+"/")), "func "+word+"(") {
			return ""
		}
	}
	return "no test in " + path + " has this name"
}
