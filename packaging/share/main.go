// Command share writes the generated files of an installation, which are all below PREFIX/share: man pages, completions of
// shells, and the licences of the modules in the programs. Pages of the command line are written from its commands, the
// others from Markdown. It installs nothing, and the same sources give the same bytes.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/gpushare/gpushare/internal/cli"
)

// programs are the installed programs. Their modules have licences.
var programs = []string{
	"./cmd/gpushare",
	"./cmd/gpushare-cli",
	"./cmd/gpushared",
	"./cmd/gpushare-nvml",
	"./cmd/gpushare-start",
	"./cmd/gpushare-front",
	"./cmd/gpushare-thaw",
	"./cmd/gpushare-plot",
}

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

// run expects the directory to write into, and the root of the repository as working directory.
func run(args []string, errs io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(errs, "share: usage: share DIRECTORY")
		return 2
	}
	out := tree(args[0])
	// A page of a command that no longer exists must not be installed.
	if err := os.RemoveAll(args[0]); err != nil {
		fmt.Fprintf(errs, "share: %v\n", err)
		return 1
	}
	for _, write := range []func(tree) error{commands, manuals, completions, licences} {
		if err := write(out); err != nil {
			fmt.Fprintf(errs, "share: %v\n", err)
			return 1
		}
	}
	return 0
}

// tree is the directory that everything is written into.
type tree string

func (t tree) file(name string, content []byte) error {
	path := filepath.Join(string(t), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// manual writes the man page NAME.SECTION, compressed as packages do.
func (t tree) manual(name string, roff []byte) error {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(roff); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	section := strings.TrimPrefix(filepath.Ext(name), ".")
	return t.file("man/man"+section+"/"+name+".gz", b.Bytes())
}

// commands writes a page for each command.
func commands(t tree) error {
	return command(t, cli.Root())
}

func command(t tree, c *cobra.Command) error {
	c.DisableAutoGenTag = true // It has the date of the build.
	var b bytes.Buffer
	head := &doc.GenManHeader{Section: "1", Source: "gpushare", Manual: "gpushare", Date: &time.Time{}}
	if err := doc.GenMan(c, head, &b); err != nil {
		return fmt.Errorf("cannot write the page of %s: %w", c.CommandPath(), err)
	}
	// The month of the zero time stands for none: that of the build would differ between builds.
	text := bytes.Replace(b.Bytes(), []byte(head.Date.Format(`"Jan 2006"`)), []byte(`""`), 1)
	if err := t.manual(strings.ReplaceAll(c.CommandPath(), " ", "-")+".1", text); err != nil {
		return err
	}
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		if err := command(t, sub); err != nil {
			return err
		}
	}
	return nil
}

// manuals writes the man pages of the daemon and of files.
func manuals(t tree) error {
	sources, err := filepath.Glob("packaging/man/*.md")
	if err != nil {
		return err
	}
	for _, source := range sources {
		b, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := t.manual(strings.TrimSuffix(filepath.Base(source), ".md"), md2man.Render(b)); err != nil {
			return err
		}
	}
	settings, err := os.ReadFile("packaging/etc/gpushared.yaml")
	if err != nil {
		return err
	}
	spec, err := os.ReadFile("docs/spec.md")
	if err != nil {
		return err
	}
	if err := t.manual("gpushared.yaml.5", md2man.Render([]byte(settingsManual(string(settings))))); err != nil {
		return err
	}
	return t.manual("gpushare-spec.5", md2man.Render([]byte(specManual(string(spec)))))
}

func title(name, section, what string) string {
	return fmt.Sprintf("%% %q %q \"\" \"gpushare\" \"gpushare\"\n\n# NAME\n\n%s - %s\n\n", strings.ToUpper(name), section, name, what)
}

// settingsManual is the man page of the settings, from their file, which explains each.
func settingsManual(file string) string {
	var b strings.Builder
	b.WriteString(title("gpushared.yaml", "5", "settings of gpushared") + "# DESCRIPTION\n\n")
	for _, paragraph := range strings.Split(strings.TrimSpace(file), "\n\n") {
		var prose []string
		for _, line := range strings.Split(paragraph, "\n") {
			if text, ok := strings.CutPrefix(line, "# "); ok {
				prose = append(prose, text)
			} else {
				b.WriteString("## " + strings.Replace(strings.TrimPrefix(line, "#"), `""`, "(empty)", 1) + "\n\n")
			}
		}
		b.WriteString(strings.Join(prose, "\n") + "\n\n")
	}
	b.WriteString("# FILES\n\n/etc/gpushare/gpushared.yaml\n\n# SEE ALSO\n\n**gpushared(8)**\n")
	return b.String()
}

var link = regexp.MustCompile(`\[([^][]*)\]\([^()]*\)`)

// specManual is the man page of the spec. A terminal is too narrow for its tables: each row becomes a paragraph. Links
// become their text.
func specManual(file string) string {
	var b strings.Builder
	b.WriteString(title("gpushare-spec", "5", "the spec of gpushare"))
	var heads []string // of the table that is read
	for _, line := range strings.Split(link.ReplaceAllString(file, "$1"), "\n") {
		switch row, table := strings.CutPrefix(line, "| "); {
		case line == "# The spec":
			b.WriteString("# DESCRIPTION\n")
		case strings.HasPrefix(line, "|--"):
		case table && heads == nil:
			heads = cells(row)
		case table:
			b.WriteString(entry(heads, cells(row)))
		default:
			heads = nil
			b.WriteString(line + "\n")
		}
	}
	b.WriteString("\n# SEE ALSO\n\n**gpushare(1)**, **gpushared(8)**\n")
	return b.String()
}

func cells(row string) []string {
	out := strings.Split(strings.TrimSuffix(strings.TrimSpace(row), "|"), "|")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}

// entry is a row of a table as a paragraph: the first cell, the cells between with their heads, and the last.
func entry(heads, row []string) string {
	var between []string
	for i := 1; i < len(row)-1; i++ {
		if row[i] != "" && i < len(heads) {
			between = append(between, heads[i]+": "+row[i])
		}
	}
	first := "**" + strings.ReplaceAll(row[0], "`", "") + "**"
	if len(between) > 0 {
		first += " (" + strings.Join(between, "; ") + ")"
	}
	return "\n" + first + "\n: " + row[len(row)-1] + "\n"
}

func completions(t tree) error {
	for name, write := range map[string]func(*cobra.Command, io.Writer) error{
		"bash-completion/completions/gpushare":    func(c *cobra.Command, w io.Writer) error { return c.GenBashCompletionV2(w, true) },
		"zsh/site-functions/_gpushare":            (*cobra.Command).GenZshCompletion,
		"fish/vendor_completions.d/gpushare.fish": func(c *cobra.Command, w io.Writer) error { return c.GenFishCompletion(w, true) },
	} {
		var b bytes.Buffer
		if err := write(cli.Root(), &b); err != nil {
			return err
		}
		if err := t.file(name, b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// licences writes the licence of gpushare, of Go and of each module that is linked into a program.
func licences(t tree) error {
	args := []string{"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}"}
	cmd := exec.Command("go", append(args, programs...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=1"), os.Stderr
	list, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("cannot list the modules of the programs: %w", err)
	}
	cmd = exec.Command("go", "env", "GOROOT")
	cmd.Stderr = os.Stderr
	goroot, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("cannot find the licence of Go: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(list)), "\n")
	slices.Sort(lines)
	var b bytes.Buffer
	b.WriteString("gpushare\nhttps://github.com/gpushare/gpushare\n\n")
	if err := texts(&b, "."); err != nil {
		return err
	}
	b.WriteString("\nThe programs contain parts of the following.\n")
	for _, line := range slices.Concat([]string{"Go standard-library " + strings.TrimSpace(string(goroot))}, slices.Compact(lines)) {
		f := strings.SplitN(line, " ", 3)
		if len(f) != 3 {
			continue // A package of the standard library has no module.
		}
		fmt.Fprintf(&b, "\n%s\n%s %s\n\n", strings.Repeat("-", 80), f[0], f[1])
		if err := texts(&b, f[2]); err != nil {
			return err
		}
	}
	return t.file("doc/gpushare/copyright", b.Bytes())
}

// texts appends the licence and the notices of a directory.
func texts(b *bytes.Buffer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() ||
			!slices.ContainsFunc(
				[]string{"LICENSE", "LICENCE", "COPYING", "NOTICE"}, func(p string) bool { return strings.HasPrefix(name, p) },
			) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = true
		b.Write(append(bytes.TrimRight(text, "\n"), '\n'))
	}
	if !found {
		return fmt.Errorf("cannot find the licence in %s", dir)
	}
	return nil
}
