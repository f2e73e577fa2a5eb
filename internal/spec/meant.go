package spec

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/gpushare/gpushare/api"
)

// meant says which key an unknown one can be: part of a known one, a known one misspelt, or one of another mapping.
func meant(key, path string, known []string) string {
	for _, k := range known {
		if strings.HasSuffix(k, "_"+key) || strings.HasSuffix(key, "_"+k) {
			return "did you mean " + k + "?"
		}
	}
	list := "known are " + strings.Join(known, ", ")
	if places := placesOf()[key]; len(places) > 0 {
		if inside := childOf(path, key, known, places); inside != "" {
			return "it is a key of " + inside + " here"
		}
		if len(places) <= 2 {
			return "it is a key of " + strings.Join(places, " and ") + "; " + list
		}
		return list
	}
	if near, ok := api.Nearest(key, known); ok {
		return "did you mean " + near + "?"
	}
	return list
}

// childOf is the known key whose mapping has the unknown one, if there is exactly one.
func childOf(path, key string, known, places []string) (child string) {
	prefix := inPlace().ReplaceAllString(path, "[]")
	if prefix != "" {
		prefix += "."
	}
	for _, k := range known {
		if slices.Contains(places, prefix+k) {
			if child != "" {
				return ""
			}
			child = k
		}
	}
	return child
}

// placesOf gives for each key the mappings that have it, "the top" for the document.
var placesOf = sync.OnceValue(func() map[string][]string {
	places := map[string][]string{}
	var walk func(t reflect.Type, path string)
	walk = func(t reflect.Type, path string) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			if t.Kind() == reflect.Slice {
				path += "[]"
			}
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return
		}
		names, index := fields(t)
		for _, name := range names {
			if path == "" {
				places[name] = append(places[name], "the top")
				walk(t.Field(index[name]).Type, name)
				continue
			}
			places[name] = append(places[name], path)
			walk(t.Field(index[name]).Type, path+"."+name)
		}
	}
	walk(reflect.TypeFor[api.Spec](), "")
	return places
})
