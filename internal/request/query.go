package request

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/version"
)

// Query is the keys that a route has, each with the type of its value.
type Query map[string]QueryType

// QueryType is the type of the value of a key.
type QueryType int

const (
	// Flag is true or false, 1 or 0. An empty value is an error.
	Flag QueryType = iota
	// Text is read by the handler.
	Text
)

// Parse reads a query. An unknown key is an error, because a request to check a change, with an error in the key,
// would be carried out.
func (q Query) Parse(raw string) (url.Values, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, Invalid("query", []api.FieldError{{Message: err.Error()}})
	}
	var wrong []api.FieldError
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if f := q.check(key, values[key]); f != nil {
			wrong = append(wrong, *f)
		}
	}
	return values, Invalid("query", wrong)
}

// check returns what is wrong with one key; nil if nothing is.
func (q Query) check(key string, values []string) *api.FieldError {
	t, known := q[key]
	switch {
	case !known:
		return unknownKey(key, key, slices.Sorted(maps.Keys(q)))
	case len(values) > 1:
		return &api.FieldError{Path: key, Message: "is there more than once"}
	case t == Flag:
		if _, ok := Flags[values[0]]; !ok {
			return &api.FieldError{Path: key, Message: fmt.Sprintf("%.64q is not a boolean", values[0]), Hint: "write true, false, 1 or 0"}
		}
	}
	return nil
}

// Flags are the values of a flag. They are never changed.
var Flags = map[string]bool{"true": true, "1": true, "false": false, "0": false}

// unknownKey is the error of a key that does not exist, with the nearest one that does.
func unknownKey(path, key string, known []string) *api.FieldError {
	f := &api.FieldError{Path: Short(path), Message: fmt.Sprintf("unknown key %q", Short(key))}
	if near, ok := api.Nearest(key, known); ok {
		f.Hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(known) > 0 {
		f.Hint = "the keys are " + strings.Join(known, ", ")
	} else {
		f.Hint = "there are no keys"
	}
	return f
}

// Short bounds the part of a request that an error repeats.
func Short(s string) string {
	const most = 128
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// Invalid returns the error of a query or of a body; nil if no field is wrong. The version is in the hint, because a newer client
// may use keys that this daemon does not know.
func Invalid(what string, wrong []api.FieldError) error {
	if len(wrong) == 0 {
		return nil
	}
	hint := fmt.Sprintf("gpushared %s has API v1: see 'gpushare version'", version.Version)
	if wrong[0].Hint != "" {
		hint = wrong[0].Hint + "; " + hint
	}
	return &api.Error{Kind: api.KindInvalid, Message: "cannot read the " + what + ": " + wrong[0].Error(), Hint: hint, Fields: wrong}
}
