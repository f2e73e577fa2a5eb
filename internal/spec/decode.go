package spec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/api"
)

// MaxSize is the largest spec that is read, in bytes. A spec has a few kilobytes; more is a mistake or an attack.
const MaxSize = 1 << 20

// maxFindings is how many mistakes are reported: enough to correct a file, and a limit for the work on a hostile one.
const maxFindings = 100

// Decode reads a spec from YAML or JSON text, strictly: an unknown or repeated key, an alias, a second document, a value
// of the wrong type or a bad quantity is refused, and so is what Validate refuses. The file's name is only for messages.
//
// The spec comes back as written, without defaults: call Normalize before planning from it. The error is an *api.Error
// of kind invalid whose Fields are all the places that are wrong, in the order of the text.
func Decode(file string, data []byte) (*api.Spec, error) {
	return read(file, data, func(s *api.Spec) api.FieldErrors { return append(s.Validate(), s.Bounds()...) })
}

// DecodeAccepted reads a spec that was accepted before, perhaps by another version: Bounds does not refuse it.
func DecodeAccepted(file string, data []byte) (*api.Spec, error) {
	return read(file, data, (*api.Spec).Validate)
}

func read(file string, data []byte, check func(*api.Spec) api.FieldErrors) (*api.Spec, error) {
	s, d := decode(data)
	if err := foreign(file, data, d.found); err != nil {
		return nil, err
	}
	if d.s == nil { // the text could not be read at all
		return nil, refusal(file, d.found)
	}
	found := d.found
	if len(found) < maxFindings {
		derived, left := d.numbers(check(s))
		found = append(found, d.place(underived(derived, d.found))...)
		found = append(found, d.place(left)...)
	}
	if len(found) > 0 {
		return nil, refusal(file, found)
	}
	return s, nil
}

// numbers takes what is wrong with numbers where text is required out of findings. What is wrong as text too has a finding
// already, and quotes do not help there.
func (d *decoder) numbers(wrong api.FieldErrors) (others, numbers api.FieldErrors) {
	for _, f := range d.unquoted {
		is := func(w api.FieldError) bool { return w.Path == f.Path || w.Path+"[0]" == f.Path }
		if i := slices.IndexFunc(wrong, is); i >= 0 {
			f = wrong[i]
			wrong = slices.Delete(slices.Clone(wrong), i, i+1)
		}
		numbers = append(numbers, f)
	}
	return wrong, numbers
}

// CheckReserved refuses reserved grants that name the same one GPU and have more than 100 % of it together. It is no part
// of Decode: a spec that was accepted before stays readable. For grants that may use several GPUs the daemon checks it,
// which knows them.
func CheckReserved(file string, data []byte, s *api.Spec) error {
	if found := Locate(file, data, s.ReservedTwice()); len(found) > 0 {
		return refusal(file, found)
	}
	return nil
}

// Locate gives findings that only have a path (of Resolve, of a planner) their file, line and column in the text that
// the spec was read from.
func Locate(file string, data []byte, findings api.FieldErrors) api.FieldErrors {
	_, d := decode(data)
	placed := d.place(findings)
	for i := range placed {
		placed[i].File = file
	}
	return placed
}

// refusal is the error of Decode: the first finding in its message, all of them in Fields.
func refusal(file string, found api.FieldErrors) error {
	sort.SliceStable(found, func(i, j int) bool {
		a, b := found[i], found[j]
		return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
	})
	all := len(found)
	found = found[:min(all, maxFindings)]
	for i := range found {
		if found[i].File == "" {
			found[i].File = file
		}
	}
	message := found[0].Error()
	if n := all - 1; n == 1 {
		message += " (and one more mistake)"
	} else if n > 1 {
		message += fmt.Sprintf(" (and %d more mistakes)", n)
	}
	return &api.Error{
		Kind: api.KindInvalid, Message: message, Fields: found,
		Hint: "nothing was changed; correct the file and check it with: gpushare spec validate",
	}
}

// underived removes findings that follow from another mistake: a field next to an unknown key is misspelt, not missing.
func underived(findings, readErrors api.FieldErrors) api.FieldErrors {
	var left api.FieldErrors
next:
	for _, f := range findings {
		for _, r := range readErrors {
			scope := parent(r.Path)
			if within(f.Path, r.Path) || f.Path == scope || parent(f.Path) == scope {
				continue next
			}
		}
		left = append(left, f)
	}
	return left
}

func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// parent is the path of what holds this path's value, "" at the top.
func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// decoder walks the YAML nodes along the types of package api. It exists because a YAML library stops at the first
// mistake, knows lines but no paths, and cannot tell which key was meant.
type decoder struct {
	s     *api.Spec
	found api.FieldErrors
	at    map[string]*yaml.Node // where each path's value (or, for a mapping's member, its key) is

	unquoted api.FieldErrors // numbers where text is required
}

func decode(data []byte) (*api.Spec, *decoder) {
	d := &decoder{at: map[string]*yaml.Node{}}
	if len(data) > MaxSize {
		d.found = api.FieldErrors{
			{
				Message: fmt.Sprintf(
					"the spec has more than 1 MiB (%d bytes), which is the most that is read: is this the right file?", MaxSize,
				),
			},
		}
		return nil, d
	}
	if f := unreadable(data); f != nil {
		d.found = api.FieldErrors{*f}
		return nil, d
	}
	y := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := y.Decode(&document); err != nil {
		d.found = api.FieldErrors{{Message: "the spec is empty: write at least version: v1"}}
		if !errors.Is(err, io.EOF) {
			d.found = api.FieldErrors{syntaxError(data, err)}
		}
		return nil, d
	}
	d.s = &api.Spec{}
	var second yaml.Node
	if err := y.Decode(&second); !errors.Is(err, io.EOF) {
		line := second.Line
		if err != nil {
			line = syntaxError(data, err).Line
		}
		d.found = append(
			d.found,
			api.FieldError{Line: line, Message: "the file has a second document: write one spec, without --- or ... in the middle"},
		)
	}
	top := document.Content[0]
	if top.Kind == yaml.ScalarNode && top.ShortTag() == "!!null" {
		d.wrong(top, "", "the spec is empty: write at least version: v1")
	} else {
		d.value(reflect.ValueOf(d.s).Elem(), top, "")
	}
	return d.s, d
}

func (d *decoder) wrong(n *yaml.Node, path, format string, args ...any) {
	d.found = append(d.found, api.FieldError{Line: n.Line, Column: n.Column, Path: path, Message: fmt.Sprintf(format, args...)})
}

// place gives findings the position of their path, or of the nearest enclosing value.
func (d *decoder) place(findings api.FieldErrors) api.FieldErrors {
	placed := append(api.FieldErrors(nil), findings...)
	for i := range placed {
		for path := placed[i].Path; ; path = parent(path) {
			if n := d.at[path]; n != nil {
				placed[i].Line, placed[i].Column = n.Line, n.Column
				break
			}
			if path == "" {
				break
			}
		}
	}
	return placed
}

// grantMIG is the path of the profile of a grant.
var grantMIG = compiled(`^tenants\[\d+\]\.grants\[\d+\]\.mig$`)

// value reads one node into one value of the spec.
func (d *decoder) value(v reflect.Value, n *yaml.Node, path string) {
	d.at[path] = n
	if n.Kind == yaml.AliasNode {
		d.wrong(n, path, "*%s is an alias, which is not read: write the value out", short(n.Value))
		return
	}
	if n.Anchor != "" {
		d.wrong(n, path, "&%s is an anchor, which is not read: remove it", short(n.Anchor))
	}
	if n.Style&yaml.TaggedStyle != 0 {
		d.wrong(n, path, "the tag %s is not read: remove it", short(n.Tag))
		return
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return // written but empty: as if it were absent
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch read := v.Addr().Interface().(type) {
	case *api.OnOff:
		d.onOff(read, n, path)
		return
	case *api.LayoutItem:
		if n.Kind == yaml.ScalarNode {
			v = v.FieldByName("Profile") // Its name is text, and its properties are a mapping.
		}
	case interface{ UnmarshalText([]byte) error }:
		if d.scalar(n, path, examples[reflect.TypeOf(read).Elem()]) {
			if err := read.UnmarshalText([]byte(n.Value)); err != nil {
				d.wrong(n, path, "%s", clip(err.Error()))
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(v, n, path)
	case reflect.Map:
		d.words(v, n, path)
	case reflect.Slice:
		d.list(v, n, path)
	case reflect.String:
		required := "text: write one value"
		if known := api.Words(path); known != nil {
			required = "one of " + strings.Join(known, ", ")
		}
		if d.scalar(n, path, required) {
			v.SetString(n.Value) // Validate refuses a number that is wrong as text too.
			if tag := n.ShortTag(); tag == "!!int" || tag == "!!float" || tag == "!!bool" {
				d.unquoted = append(d.unquoted, api.FieldError{
					Line: n.Line, Column: n.Column, Path: path,
					Message: fmt.Sprintf("%s is %s here, text is required: put it in quotes", short(n.Value), kinds[tag]),
				})
			}
		}
	case reflect.Bool:
		if d.scalar(n, path, "true or false") {
			if n.ShortTag() != "!!bool" {
				d.wrong(n, path, "%s is neither true nor false: write true or false", quoted(n))
				return
			}
			v.SetBool(strings.EqualFold(n.Value, "true"))
		}
	case reflect.Int, reflect.Uint32, reflect.Uint64:
		d.number(v, n, path)
	default:
		panic("internal error: the spec has a field of a kind that is not read: " + v.Type().String())
	}
}

// kinds name the type that YAML read.
var kinds = map[string]string{
	"!!int": "a number", "!!float": "a number", "!!bool": "true or false", "!!str": "text",
	"!!map": "a mapping", "!!seq": "a list", "!!timestamp": "a date", "!!binary": "binary",
}

// examples say what a quantity is.
var examples = map[reflect.Type]string{
	reflect.TypeFor[api.Bytes]():    "an amount of memory, as in 30GiB",
	reflect.TypeFor[api.Percent]():  "a share, as in 40%",
	reflect.TypeFor[api.Duration](): "a duration, as in 5m",
	reflect.TypeFor[api.Celsius]():  "a temperature, as in 85C",
	reflect.TypeFor[api.Watts]():    "a power, as in 300W",
}

func (d *decoder) scalar(n *yaml.Node, path, required string) bool {
	if n.Kind == yaml.ScalarNode {
		return true
	}
	if grantMIG().MatchString(path) {
		required = oneProfile(n)
	}
	d.wrong(n, path, "is %s, must be %s", kinds[n.ShortTag()], required)
	return false
}

// oneProfile says what to write instead of a list or a mapping as the profile of a grant.
func oneProfile(n *yaml.Node) string {
	if n.Kind != yaml.SequenceNode {
		return "one profile: write mig: 3g.20gb, or without mig the properties, as in slices: 3"
	}
	var names []string
	for _, item := range n.Content {
		if !slices.Contains(names, item.Value) {
			names = append(names, item.Value)
		}
	}
	why := "one profile: a lease has one instance, because a CUDA program uses one MIG device. "
	switch {
	case len(names) != 1 || names[0] == "":
		return why + "Write a grant for each, and run each process in a lease of its own"
	case len(n.Content) == 1:
		return "one profile: write mig: " + short(names[0])
	}
	return why + fmt.Sprintf(
		"Write mig: %s, max_leases: %d, and run each process in a lease of its own", short(names[0]), len(n.Content),
	)
}

func (d *decoder) onOff(s *api.OnOff, n *yaml.Node, path string) {
	if !d.scalar(n, path, "one of "+strings.Join(api.Words(path), ", ")) {
		return
	}
	*s = api.OnOff(n.Value)
	if n.ShortTag() == "!!bool" {
		*s = "off"
		if strings.EqualFold(n.Value, "true") {
			*s = "on"
		}
	}
}

// plain are the digits of a number, but for one that others read as octal.
var plain = compiled(`^-?(0|[1-9][0-9]*)$`)

// severalNumbers are numbers as other tools write them: 0-3, or 0,1.
var severalNumbers = compiled(`^[0-9]+( *[-,] *[0-9]+)+$`)

func (d *decoder) number(v reflect.Value, n *yaml.Node, path string) {
	r, known := api.RangeOf(path)
	if !known {
		r.Least = 0
	}
	if !d.scalar(n, path, "a whole number: write "+r.String()) {
		return
	}
	switch tag := n.ShortTag(); {
	case tag == "!!str" && plain().MatchString(n.Value):
		d.wrong(n, path, "%s is text because of its quotes: write %s without them", quoted(n), short(n.Value))
		return
	case tag == "!!int" && !plain().MatchString(n.Value):
		if i, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
			d.wrong(n, path, "%s is not written in plain digits: write %d", short(n.Value), i)
			return
		}
		d.wrong(n, path, "%s is not written in plain digits", short(n.Value))
		return
	case tag == "!!str" && severalNumbers().MatchString(n.Value):
		d.wrong(n, path, "%s is not a whole number: write one, or several as a list, [0, 1, 2]", quoted(n))
		return
	case tag != "!!int" && !plain().MatchString(n.Value): // YAML takes digits for a float if there are too many
		d.wrong(n, path, "%s is not a whole number: write %s", quoted(n), r)
		return
	}
	if v.Kind() == reflect.Int {
		if i, err := strconv.ParseInt(n.Value, 10, 32); err == nil {
			v.SetInt(i)
			return
		}
	} else if u, err := strconv.ParseUint(n.Value, 10, v.Type().Bits()); err == nil {
		v.SetUint(u)
		return
	}
	d.wrong(n, path, "%s is out of range: write %s", short(n.Value), r)
}

// list reads a list. A type that may be one value or a list of them is read from either.
func (d *decoder) list(v reflect.Value, n *yaml.Node, path string) {
	items := n.Content
	single := false
	if n.Kind != yaml.SequenceNode {
		_, either := v.Addr().Interface().(interface{ UnmarshalJSON([]byte) error })
		if !either || n.Kind != yaml.ScalarNode {
			d.wrong(n, path, "is %s, must be a list: %s", kinds[n.ShortTag()], asList(v.Type().Elem(), n))
			return
		}
		items, single = []*yaml.Node{n}, true
	}
	v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	for i, item := range items {
		p := path
		if !single {
			p = fmt.Sprintf("%s[%d]", path, i)
		}
		if item.Kind == yaml.ScalarNode && item.ShortTag() == "!!null" {
			d.wrong(item, p, "is empty: write a value or remove the item")
			continue
		}
		d.value(v.Index(i), item, p)
	}
}

// asList says how to write a list.
func asList(item reflect.Type, n *yaml.Node) string {
	switch {
	case item.Kind() == reflect.Struct && item != reflect.TypeFor[api.LayoutItem]():
		names, _ := fields(item)
		return fmt.Sprintf("write each on lines of its own after a dash, as in - %s: …", names[0])
	case n.Kind == yaml.ScalarNode:
		return fmt.Sprintf("write [%s]", short(n.Value))
	}
	return "write [first, second], or each on a line of its own after a dash"
}

// structure reads a mapping into a struct, by the names that the struct's json tags give.
func (d *decoder) structure(v reflect.Value, n *yaml.Node, path string) {
	names, index := fields(v.Type())
	of := "with " + strings.Join(names, ", ")
	if v.Type() == reflect.TypeFor[api.LayoutItem]() {
		of += ", or a profile name"
	}
	if !d.mapping(n, path, of) {
		return
	}
	d.members(n, path, func(key, value *yaml.Node, p string) {
		i, ok := index[key.Value]
		if !ok {
			d.wrong(key, p, "unknown key %s: %s", quoted(key), meant(key.Value, path, names))
			return
		}
		d.value(v.Field(i), value, p)
		if value.Kind != yaml.ScalarNode {
			d.at[p] = key // a finding about the whole of a block belongs at its name
		}
	})
}

// words reads a mapping with free keys.
func (d *decoder) words(v reflect.Value, n *yaml.Node, path string) {
	if !d.mapping(n, path, "of name: value") {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.members(n, path, func(key, value *yaml.Node, p string) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(item, value, p)
		v.SetMapIndex(reflect.ValueOf(key.Value), item)
	})
}

func (d *decoder) mapping(n *yaml.Node, path, of string) bool {
	if n.Kind == yaml.MappingNode {
		return true
	}
	d.wrong(n, path, "is %s, must be a mapping %s", kinds[n.ShortTag()], of)
	return false
}

// members calls f for each member of a mapping, each key once.
func (d *decoder) members(n *yaml.Node, path string, f func(key, value *yaml.Node, path string)) {
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		p := clip(key.Value)
		if path != "" {
			p = path + "." + p
		}
		if key.Kind != yaml.ScalarNode || key.Anchor != "" || key.Style&yaml.TaggedStyle != 0 {
			d.wrong(key, path, "must be a key, as plain text")
			continue
		}
		if first, ok := seen[key.Value]; ok {
			d.wrong(key, p, "%s is already on line %d: write each key once", quoted(key), first)
			continue
		}
		seen[key.Value] = key.Line
		f(key, value, p)
	}
}

// fields lists a struct's names in the order of the type, without fields that are not written.
func fields(t reflect.Type) (names []string, index map[string]int) {
	index = make(map[string]int, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		names = append(names, name)
		index[name] = i
	}
	return names, index
}

func quoted(n *yaml.Node) string { return strconv.Quote(short(n.Value)) }

// short keeps a hostile value from flooding a message.
func short(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

// clip does the same for a sentence.
func clip(s string) string {
	if r := []rune(s); len(r) > 300 {
		return string(r[:300]) + "…"
	}
	return s
}
