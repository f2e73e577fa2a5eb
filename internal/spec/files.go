package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// DropIns is the directory next to a spec whose files add tenants.
const DropIns = "conf.d"

// Document is a spec with the text that it was read from: of one file, or of a file and its drop-ins.
type Document struct {
	File string // the only one, or the first
	Spec *api.Spec

	parts []part
}

// part is one file of a document.
type part struct {
	file  string
	text  []byte
	spec  *api.Spec // of this file alone
	first int       // where its tenants begin in the document
}

// NewDocument is a spec that was read from one text.
func NewDocument(file string, text []byte, s *api.Spec) *Document {
	return &Document{File: file, Spec: s, parts: []part{{file: file, text: text, spec: s}}}
}

// ReadFiles reads the spec of a file and of the *.yaml next to it in conf.d, in the order of their names. A drop-in has
// tenants only, and a tenant is in one file.
func ReadFiles(file string) (*Document, error) {
	names, err := dropIns(filepath.Join(filepath.Dir(file), DropIns))
	if err != nil {
		return nil, unreadableFile(err)
	}
	d := &Document{File: file}
	size := 0
	in := map[string]string{} // tenant → file
	for _, name := range append([]string{file}, names...) {
		text, err := readFile(name)
		if err != nil {
			return nil, err
		}
		if size += len(text); size > MaxSize {
			return nil, refusal(name, api.FieldErrors{
				{
					Message: fmt.Sprintf(
						"with this file the spec has more than 1 MiB (%d bytes), which is the most that is read", MaxSize,
					),
				},
			})
		}
		s, err := Decode(name, text)
		if err != nil {
			return nil, err
		}
		found := onlyHere(s, d.File, len(d.parts) > 0)
		for i := range s.Tenants {
			tenant := s.Tenants[i].Name
			if other, ok := in[tenant]; ok {
				found = append(found, api.FieldError{
					Path:    fmt.Sprintf("tenants[%d].name", i),
					Message: fmt.Sprintf("tenant %q is in %s and in %s: remove it from one of the files", tenant, other, name),
				})
			}
			in[tenant] = name
		}
		if len(found) > 0 {
			return nil, refusal(name, Locate(name, text, found))
		}
		p := part{file: name, text: text, spec: s}
		if d.Spec == nil {
			whole := *s
			whole.Tenants = slices.Clone(s.Tenants)
			d.Spec = &whole
		} else {
			p.first = len(d.Spec.Tenants)
			d.Spec.Tenants = append(d.Spec.Tenants, s.Tenants...)
		}
		d.parts = append(d.parts, p)
	}
	if found := append(d.Spec.Validate(), d.Spec.Bounds()...); len(found) > 0 { // what two files have together
		return nil, refusal(file, d.Locate(found))
	}
	return d, nil
}

// dropIns lists the drop-ins in a directory, which may be missing. One that cannot be read is an error: without its tenants the spec
// would say that they have nothing.
func dropIns(dir string) (names []string, err error) {
	entries, cut, err := boundedread.Entries(dir, boundedread.Files)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if cut {
		return nil, fmt.Errorf("%s has more than %d files", dir, boundedread.Files)
	}
	for _, e := range entries {
		if n := e.Name(); filepath.Ext(n) == ".yaml" && !strings.HasPrefix(n, ".") {
			names = append(names, filepath.Join(dir, n))
		}
	}
	return names, nil
}

// onlyHere refuses what a file that the daemon reads by itself cannot have.
func onlyHere(s *api.Spec, main string, dropIn bool) (found api.FieldErrors) {
	if s.Base != nil {
		found = append(found, api.FieldError{Path: "base", Message: "is not read in a file that the daemon applies by itself: remove it"})
	}
	if !dropIn {
		return found
	}
	const only = "a drop-in has tenants only: write it in "
	if n := s.Node; n.Enforce != "" || n.Isolation != nil || n.GPUMemoryReserve != nil || n.PerUser != nil || n.Queue != nil ||
		n.Quiesce != nil ||
		n.Health != nil || n.Engine != nil {
		found = append(found, api.FieldError{Path: "node", Message: only + main})
	}
	if len(s.GPUs) > 0 {
		found = append(found, api.FieldError{Path: "gpus", Message: only + main})
	}
	return found
}

// readFile reads a regular file: a user who may write a drop-in must not make the reader wait.
func readFile(name string) ([]byte, error) {
	text, _, err := boundedread.TrustedPrefix(name, MaxSize+1)
	if errors.Is(err, boundedread.ErrType) {
		return nil, unreadableFile(fmt.Errorf("%s is no regular file", name))
	}
	if err != nil {
		return nil, unreadableFile(err)
	}
	return text, nil
}

func unreadableFile(err error) error {
	return &api.Error{
		Kind:    api.KindInvalid,
		Message: "cannot read the spec: " + err.Error(),
		Hint:    "the spec in force stays; correct spec_file, or remove it from the settings",
	}
}

// Is reports whether another spec says the same as the document.
func (d *Document) Is(s *api.Spec) bool { return same(d.Spec, s) }

// Means reports whether another spec says the same as the document, or as its first file alone.
func (d *Document) Means(s *api.Spec) bool { return d.Is(s) || same(d.parts[0].spec, s) }

func same(a, b *api.Spec) bool {
	text := func(s *api.Spec) string {
		without := *s
		without.Base = nil
		b, err := Encode(&without)
		if err != nil {
			return "" // as no other: a spec has a version
		}
		return string(b)
	}
	is := text(a)
	return is != "" && is == text(b)
}

// Locate gives findings that only have a path their file, line and column.
func (d *Document) Locate(findings api.FieldErrors) api.FieldErrors {
	placed := make(api.FieldErrors, 0, len(findings))
	for _, f := range findings {
		p, path := d.partOf(f.Path)
		f.Path = path
		placed = append(placed, Locate(p.file, p.text, api.FieldErrors{f})...)
	}
	return placed
}

// Located does this for the fields of an error.
func (d *Document) Located(err error) error {
	var e *api.Error
	if errors.As(err, &e) && len(e.Fields) > 0 {
		e.Fields = d.Locate(e.Fields)
		e.Message = e.Fields[0].Error()
	}
	return err
}

// partOf is the file that a path is about, and the path in it.
func (d *Document) partOf(path string) (p part, within string) {
	rest, ok := strings.CutPrefix(path, "tenants[")
	number, after, _ := strings.Cut(rest, "]")
	i, err := strconv.Atoi(number)
	if !ok || err != nil {
		return d.parts[0], path
	}
	for _, p := range d.parts {
		if i >= p.first && i < p.first+len(p.spec.Tenants) {
			return p, fmt.Sprintf("tenants[%d]%s", i-p.first, after)
		}
	}
	return d.parts[0], path
}

// Command is the command that sends a spec again.
func Command(file string) string {
	if generation, ok := strings.CutPrefix(file, "generation "); ok {
		return "gpushare rollback " + generation
	}
	return "gpushare apply -f " + Argument(file)
}

// Argument is the file of a spec as a command names it: "-" for standard input, and FILE, as in the help, for a name that a
// shell would not read as one word.
func Argument(file string) string {
	switch {
	case file == "the spec":
		return "-"
	case strings.ContainsFunc(file, func(r rune) bool {
		return !strings.ContainsRune("/._-+,@%:", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}):
		return "FILE"
	}
	return file
}
