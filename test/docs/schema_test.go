package docs

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/test/golden"
)

const schemaFile = "docs/spec.schema.json"

// patterns are those of text that has a form of its own, by path.
var patterns = map[string]string{
	"tenants[].name":                   "^[a-z][a-z0-9-]{0,30}$",
	"tenants[].grants[].name":          "^[a-z][a-z0-9-]{0,30}$",
	"tenants[].grants[].mig":           profilePattern,
	"gpus[].mig.layout[].gpu_memory":   "^>=",
	"gpus[].mig.mps[].gpu_memory":      "^>=",
	"gpus[].select.uuid[]":             "^GPU-.+$",
	"tenants[].grants[].gpus.uuid[]":   "^GPU-.+$",
	"gpus[].select.pci_id[]":           pciIDPattern,
	"tenants[].grants[].gpus.pci_id[]": pciIDPattern,
	"tenants[].grants[].gpu_memory":    "^>=",
}

const pciIDPattern = "^(0[xX][0-9a-fA-F]{8}|[0-9a-fA-F]{4}:[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}:[0-9a-fA-F]{4})?)$"

const profilePattern = "^([0-9]+c\\.)?[0-9]+g\\.[0-9]+gb([+-].*)?$"

// quantities are the forms of the types that are written as text.
var quantities = map[reflect.Type]map[string]any{
	reflect.TypeFor[api.Bytes]():   {"type": "string", "pattern": "^([0-9]+\\.?[0-9]*|\\.[0-9]+) *([KMGT]i)?B$"},
	reflect.TypeFor[api.Percent](): {"type": "string", "pattern": "^([0-9]+\\.?[0-9]{0,2}|\\.[0-9]{1,2})%$"},
	reflect.TypeFor[api.Celsius](): {"type": "string", "pattern": "^[0-9]+C$"},
	reflect.TypeFor[api.Watts]():   {"type": "string", "pattern": "^[0-9]+W$"},
	reflect.TypeFor[api.Duration](): {"anyOf": []any{
		map[string]any{
			"type":    "string",
			"pattern": "^ *(0|([0-9.]+(ns|us|µs|μs|ms|s|m|h|d))+|[0-9]+-[0-9]+(:[0-9]+){0,2}|[0-9]+(:[0-9]+){2}) *$",
		},
		map[string]any{"const": 0},
	}},
}

// schemaOf describes a type as the decoder reads it. described gives the text of a key.
func schemaOf(t reflect.Type, path string, described func(path string) string) map[string]any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if q, ok := quantities[t]; ok {
		out := map[string]any{}
		for k, v := range q {
			out[k] = v
		}
		return out
	}
	if t == reflect.TypeFor[api.OnOff]() {
		return map[string]any{"enum": append(anys(api.Words(path)), true, false)}
	}
	if known := api.Words(path); known != nil {
		return map[string]any{"enum": anys(known)}
	}
	switch t.Kind() {
	case reflect.Struct:
		properties, required := map[string]any{}, []any{}
		for i := range t.NumField() {
			name, option, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			at := strings.TrimPrefix(path+"."+name, ".")
			one := schemaOf(t.Field(i).Type, at, described)
			if option == "" {
				required = append(required, name)
			} else {
				one = orNull(one)
			}
			if text := described(at); text != "" {
				one["description"] = text
			}
			properties[name] = one
		}
		out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
		if len(required) > 0 {
			out["required"] = required
		}
		if t == reflect.TypeFor[api.LayoutItem]() { // By name or by properties.
			out["required"] = []any{"slices"}
			return map[string]any{"anyOf": []any{map[string]any{"type": "string", "pattern": profilePattern}, out}}
		}
		return out
	case reflect.Slice:
		item := schemaOf(t.Elem(), path+"[]", described)
		list := map[string]any{"type": "array", "items": item}
		if strings.HasPrefix(t.Name(), "List[") {
			return map[string]any{"anyOf": []any{item, list}}
		}
		return list
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Uint32, reflect.Uint64:
		out := map[string]any{"type": "integer", "minimum": 0}
		if r, ok := api.RangeOf(path); ok {
			out["minimum"] = r.Least
			if r.Most > 0 {
				out["maximum"] = r.Most
			}
		}
		return out
	case reflect.String:
		out := map[string]any{"type": "string"}
		if p := patterns[path]; p != "" {
			out["pattern"] = p
		}
		return out
	}
	panic("the spec has a type that the schema does not describe: " + t.String())
}

// orNull accepts a key without a value too: it counts as absent.
func orNull(s map[string]any) map[string]any {
	if kind, ok := s["type"].(string); ok {
		s["type"] = []any{kind, "null"}
		return s
	}
	if words, ok := s["enum"].([]any); ok {
		s["enum"] = append(words, nil)
		return s
	}
	return map[string]any{"anyOf": append(s["anyOf"].([]any), map[string]any{"type": "null"})}
}

func anys(words []string) (out []any) {
	for _, w := range words {
		out = append(out, w)
	}
	return out
}

var (
	specRow = regexp.MustCompile("(?m)^\\| `([a-z_.\\[\\]]+)` \\|(.*)\\|(.*)\\|(.*)\\|$")
	link    = regexp.MustCompile(`\[([^\]]+)\]\([^)]+\)`)
)

// meanings are the texts of the tables of docs/spec.md, without markup.
func meanings(t *testing.T) map[string]string {
	out := map[string]string{}
	plain := func(s string) string {
		return strings.TrimSpace(strings.NewReplacer("`", "", "*unmanaged*", "unmanaged").Replace(link.ReplaceAllString(s, "$1")))
	}
	for _, m := range specRow.FindAllStringSubmatch(read(t, "docs/spec.md"), -1) {
		text := plain(m[4]) + " (" + plain(m[2])
		if d := plain(m[3]); d != "" && d != "required" {
			text += "; default " + d
		}
		out[m[1]] = text + ")"
	}
	return out
}

func TestSchemaOfTheSpecIsCurrent(t *testing.T) {
	texts := meanings(t)
	schema := schemaOf(reflect.TypeFor[api.Spec](), "", func(path string) string { return texts[path] })
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "The spec of gpushare"
	schema["description"] = "Keys, types, words and ranges. 'gpushare spec validate' also finds what this cannot express. Written by 'go test ./test/docs -update'."
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(schema); err != nil {
		t.Fatal(err)
	}
	golden.File(t, filepath.Join(root, schemaFile), b.String())
}

// What the daemon accepts the schema accepts, and it refuses what has the wrong keys, types or words.
func TestSchemaOfTheSpecFits(t *testing.T) {
	c := jsonschema.NewCompiler()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, schemaFile)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddResource("spec.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("spec.json")
	if err != nil {
		t.Fatal(err)
	}
	check := func(text []byte) error {
		var v any
		if err := yaml.Unmarshal(text, &v); err != nil {
			return err
		}
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		object, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			return err
		}
		return schema.Validate(object)
	}
	valid := 0
	for _, pattern := range []string{"testdata/configs/valid/*.yaml", "examples/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			valid++
			if err := check(text); err != nil {
				t.Errorf("%s: %v", f, err)
			}
			s, err := spec.Decode(f, text)
			if err != nil {
				t.Fatal(err)
			}
			s.Normalize()
			if text, err = spec.Encode(s); err != nil {
				t.Fatal(err)
			}
			if err := check(text); err != nil {
				t.Errorf("%s with its defaults: %v", f, err)
			}
			if text, err = json.Marshal(s); err != nil {
				t.Fatal(err)
			}
			if err := check(text); err != nil {
				t.Errorf("%s as an object: %v", f, err)
			}
		}
	}
	if valid < 6 {
		t.Fatalf("only %d valid specs were found", valid)
	}
	// What is wrong with the keys, the types or the words of a document, and with nothing else.
	structural := []string{
		"a-list",
		"modes",
		"only-null",
		"quantities",
		"tenants",
		"unknown-key",
		"unknown-keys-everywhere",
		"wrong-types",
		"empty",
	}
	for _, name := range structural {
		text, err := os.ReadFile(filepath.Join(root, "testdata/configs/invalid", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := errors.AsType[*jsonschema.ValidationError](check(text)); !ok {
			t.Errorf("%s.yaml is not refused", name)
		}
	}
	for _, text := range []string{
		"{}", "version: v2", "version: v1\nnode: {enforce: yes please}", "version: v1\ngpus: {}", "version: v1\ngpus: [{select: {all: true}}]", "version: v1\ngpus: [{select: {all: true}, mode: MIG}]",
		"version: v1\ngpus: [{select: {index: -1}, mode: exclusive}]", "version: v1\ntenants: [{name: Red}]", "version: v1\ntenants: [{name: red, tasks: 0}]", "version: v1\ntenants: [{name: red, memory: {max: 1GB}}]",
		"version: v1\ntenants: [{name: red, grants: [{name: g, timeslice: {share: 40}}]}]", "version: v1\ntenants: [{name: red, grants: [{name: g, timeslice: {}}]}]", "version: v1\ntenants: [{name: red, grants: [{name: g, exclusive: 1, max_time: 24}]}]",
	} {
		if check([]byte(text)) == nil {
			t.Errorf("%q is not refused", text)
		}
		if _, err := spec.Decode("f", []byte(text)); err == nil {
			t.Errorf("%q is refused by the schema alone", text)
		}
	}
	for _, text := range []string{"version: v1\ntenants: [{name: red, grants: [{name: g, exclusive: 1, max_time: 1-12:00:00, idle: {after: 36:00:00}}]}]", "version: v1\nnode: {enforce: true}\ngpus:\ntenants:"} {
		if err := check([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
