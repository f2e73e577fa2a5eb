package docs

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// keys walks a type as it is written in YAML: "tenants[].grants[].timeslice.share".
func keys(t reflect.Type, at string) []string {
	switch {
	case t.Kind() == reflect.Pointer:
		return keys(t.Elem(), at)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return keys(t.Elem(), at+"[]")
	case t.Kind() != reflect.Struct:
		return nil
	}
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		path := strings.TrimPrefix(at+"."+name, ".")
		out = append(out, path)
		out = append(out, keys(f.Type, path)...)
	}
	return out
}

func TestEveryKeyOfTheSpecIsDocumented(t *testing.T) {
	real := keys(reflect.TypeFor[api.Spec](), "")
	if len(real) < 50 {
		t.Fatalf("only %d keys were found: the walk is broken", len(real))
	}
	var written []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.\\[\\]]+)` \\|").FindAllStringSubmatch(read(t, "docs/spec.md"), -1) {
		written = append(written, m[1])
	}
	for _, k := range real {
		if !slices.Contains(written, k) {
			t.Errorf("the key %s of the spec has no row in docs/spec.md", k)
		}
	}
	for _, k := range written {
		if !slices.Contains(real, k) {
			t.Errorf("docs/spec.md has a row for %s, which the spec does not have", k)
		}
	}
}

// The defaults in the tables are those of the code.
func TestDefaultsAreCurrent(t *testing.T) {
	text := read(t, "docs/spec.md")
	for key, value := range map[string]string{
		"node.gpu_memory_reserve": api.DefaultGPUMemoryReserve.String(),
		"gpus[].mig.keep":         api.DefaultKeep.String(),
		"gpus[].timeslice.round":  api.DefaultRound.String(),
		"tenants[].overuse.grace": api.DefaultOveruseGrace.String(),
	} {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(key) + "` \\|[^|]*\\| `" + regexp.QuoteMeta(value) + "` \\|")
		if !row.MatchString(text) {
			t.Errorf("the row of %s in docs/spec.md does not give its default, %s", key, value)
		}
	}
}
