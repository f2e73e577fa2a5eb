package docs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// first is how many lines of README.md a reader sees without scrolling.
const first = 15

// The first screen of README.md has the two commands with their minutes, and what they need. Whether they pass in these minutes
// test/readme/here.sh checks, which reads the same rows.
func TestFirstScreen(t *testing.T) {
	screen := strings.Join(strings.SplitN(read(t, "README.md"), "\n", first+1)[:first], "\n")
	rows := regexp.MustCompile("(?m)^\\| `(make [a-z]+)` \\| [^|]+ \\| ([1-9][0-9]*) \\| ([1-9][0-9]*) \\|$").
		FindAllStringSubmatch(screen, -1)
	if len(rows) != 2 || rows[0][1] != "make demo" || rows[1][1] != "make test" {
		t.Fatalf("the first %d lines have the commands %q, want 'make demo' and 'make test' with their minutes, cold and warm", first, rows)
	}
	if rows[1][2] > "8" || len(rows[1][2]) > 1 {
		t.Errorf("'make test' needs %s minutes cold, at most 8: enumeration.Long leaves a test to 'make test-whole'", rows[1][2])
	}
	makefile := read(t, "Makefile")
	for _, r := range rows {
		if !strings.Contains(makefile, "\n"+strings.TrimPrefix(r[1], "make ")+": ") || !strings.Contains(makefile, "@echo '"+r[1]+" ") {
			t.Errorf("the Makefile has no target of %q, or 'make help' does not name it", r[1])
		}
	}
	need := read(t, "packaging/need.sh")
	for _, tool := range []string{"Go", "gcc", "make", "git"} {
		if !strings.Contains(screen, tool) {
			t.Errorf("the first screen does not say that %s is needed", tool)
		}
		if (tool == "Go" || tool == "gcc") && !strings.Contains(need, strings.ToLower(tool)) {
			t.Errorf("packaging/need.sh does not ask for %s", tool)
		}
	}
}

// Every document and every program is found from README.md.
func TestEveryDocumentAndProgramIsInTheReadme(t *testing.T) {
	readme := read(t, "README.md")
	for _, name := range documentNames(t)[1:] {
		if !strings.Contains(readme, "]("+name) {
			t.Errorf("README.md has no link to %s", name)
		}
	}
	found := 0
	for _, pattern := range []string{"cmd/*", "kubelet/cmd/*"} {
		dirs, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dirs {
			found++
			if row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| .*`%s`.* \\| .+ \\|$", filepath.Base(d))); !row.MatchString(readme) {
				t.Errorf("README.md does not say in a line what %s does", filepath.Base(d))
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d programs were found: the reading is broken", found)
	}
}

// claims are what README.md promises, each with a document and the words there that it rests on. A document that says something else by
// now makes the claim false.
var claims = []struct{ claim, document, rests string }{
	{"It needs no scheduler, database, `LD_PRELOAD` or patched driver", "SCOPE.md", "`LD_PRELOAD`, patched drivers, interposers"},
	{"It needs no scheduler, database,", "SCOPE.md", "a network API, a database"},
	{"[Kubernetes](docs/kubernetes.md) may run on it", "docs/kubernetes.md", "gpushare carves, counts and enforces on the node"},
	{"[Slurm](docs/slurm.md) and", "SCOPE.md", "Slurm and Kubernetes do it"},
	{"checks each statement that it prints", "test/demo/main.go", "All statements were checked"},
	{
		"shares were within 0.7 points over",
		"docs/maintainers/robustness.md",
		"| 30/70, 50 ms of queued kernels | 0.02, 0.09 | 0.49, 0.69 |",
	},
	{"one above it is, for up to 5 s at once", "docs/timeslice.md", "is frozen for up to 5 s at once"},
	{"A lease below its share is hardly", "docs/quota.md", "**Programs that use less than their share** are not frozen"},
	{
		"A service next to training needs [`latency: low`]",
		"docs/quota.md",
		"A grant with `latency: low` reserves the way for a service next to training",
	},
	{"**Root, and members of a `docker` group, are not restricted.**", "docs/security.md", "`docker`"},
	{"A node without a spec, or with `enforce: observe`, is only observed", "docs/install.md", "a node without a spec is only observed"},
}

// What README.md said once and is not so.
var notSo = []string{"no Kubernetes", "latency is that of a round", "go.dev/dl"}

func TestClaimsOfTheReadmeRestOnDocuments(t *testing.T) {
	readme := strings.Join(strings.Fields(read(t, "README.md")), " ")
	for _, c := range claims {
		if !strings.Contains(readme, c.claim) {
			t.Errorf("README.md does not say %q any more: change the claim here, with the document that it rests on", c.claim)
		}
		if text := strings.Join(strings.Fields(read(t, c.document)), " "); !strings.Contains(text, c.rests) {
			t.Errorf("README.md says %q, and %s does not say %q any more", c.claim, c.document, c.rests)
		}
	}
	for _, text := range notSo {
		if strings.Contains(strings.ToLower(readme), strings.ToLower(text)) {
			t.Errorf("README.md says %q, which is not so", text)
		}
	}
}
