package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Decode reads a document into out, a pointer. Unknown, repeated and differently capitalised keys are errors: package json would
// ignore the first, take the last of the second, and accept the third.
func Decode(b []byte, out any) error {
	if err := checkJSON(b, reflect.TypeOf(out).Elem()); err != nil {
		return err
	}
	if err := json.Unmarshal(b, out); err != nil {
		f := api.FieldError{Message: err.Error()}
		if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			f = api.FieldError{Path: kind.Field, Message: "a JSON " + kind.Value + " is not allowed here"}
		}
		return Invalid("request", []api.FieldError{f})
	}
	return nil
}

// checkJSON checks the keys of a document, of which there is exactly one.
func checkJSON(b []byte, t reflect.Type) error {
	w := keyChecker{d: json.NewDecoder(bytes.NewReader(b))}
	err := w.value(t, "", 0)
	if err == nil {
		if _, more := w.d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is text after the end of the JSON value")
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the JSON value is not complete")
	}
	if err != nil {
		return Invalid("request", []api.FieldError{{Message: err.Error()}})
	}
	return Invalid("request", w.wrong)
}

const (
	maxDepth = 32 // of objects and lists in a request
	maxWrong = 8  // keys that an error lists
)

// keyChecker walks through a document.
type keyChecker struct {
	d     *json.Decoder
	wrong []api.FieldError
}

// value checks the next value. t is nil for a type that reads its JSON itself: only repeated keys are found in it.
func (w *keyChecker) value(t reflect.Type, path string, depth int) error {
	token, err := w.d.Token()
	if err != nil {
		return err
	}
	bracket, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	if depth == maxDepth {
		return fmt.Errorf("it has more than %d levels", maxDepth)
	}
	t = plain(t)
	if bracket == '[' {
		for i := 0; w.d.More(); i++ {
			if err := w.value(element(t), path+"["+strconv.Itoa(i)+"]", depth+1); err != nil {
				return err
			}
		}
	} else if err := w.object(t, path, depth); err != nil {
		return err
	}
	_, err = w.d.Token() // the closing bracket
	return err
}

func (w *keyChecker) object(t reflect.Type, path string, depth int) error {
	keys, strict := fields(t)
	seen := map[string]bool{}
	for w.d.More() {
		token, err := w.d.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string) // The decoder returns nothing else here.
		at := strings.TrimPrefix(path+"."+key, ".")
		inner, known := keys[key]
		switch {
		case seen[key]:
			w.report(&api.FieldError{Path: Short(at), Message: "is there more than once"})
		case strict && !known:
			w.report(unknownKey(at, key, slices.Sorted(maps.Keys(keys))))
		case !strict:
			inner = element(t)
		}
		seen[key] = true
		if err := w.value(inner, at, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (w *keyChecker) report(f *api.FieldError) {
	if len(w.wrong) < maxWrong {
		w.wrong = append(w.wrong, *f)
	}
}

// plain returns the type behind pointers; nil if it reads its JSON itself.
func plain(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	return t
}

// element returns the type of the values of a list or a map; nil if t is neither.
func element(t reflect.Type) reflect.Type {
	if t == nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		return t.Elem()
	}
	return nil
}

// fields returns the keys of a struct with their types; ok is false for another type.
func fields(t reflect.Type) (keys map[string]reflect.Type, ok bool) {
	if t == nil || t.Kind() != reflect.Struct {
		return nil, false
	}
	keys = map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			keys[name] = f.Type
		}
	}
	return keys, true
}
