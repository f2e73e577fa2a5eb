package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
)

// mostChanges and mostValue bound the text of Changes: it is for one line.
const (
	mostChanges = 20
	mostValue   = 60 // bytes of a value
)

// Changes describes what changed from one spec to another, one change for each key, as in "tenants.vision.members.users: + carol".
// Entries of GPUs are named by their selectors.
func Changes(before, after string) []string {
	a, err := parts(before)
	if err != nil {
		return []string{"the spec before cannot be read by this version"}
	}
	b, err := parts(after)
	if err != nil {
		return []string{"this version cannot read it"}
	}
	out := differences("", a, b)
	if n := len(out) - mostChanges; n > 0 {
		out = append(out[:mostChanges:mostChanges], fmt.Sprintf("and %d more", n))
	}
	return out
}

// parts is a spec as maps of maps, in which lists of named things are maps too.
func parts(text string) (map[string]any, error) {
	if text == "" {
		return map[string]any{}, nil
	}
	s, err := Decode("the spec", []byte(text))
	if err != nil {
		return nil, err
	}
	gpus, tenants := map[string]any{}, map[string]any{}
	for i := range s.GPUs {
		entry := mapping(&s.GPUs[i])
		delete(entry, "select")
		add(gpus, selected(&s.GPUs[i].Select), entry)
	}
	for i := range s.Tenants {
		t := &s.Tenants[i]
		entry, grants := mapping(t), map[string]any{}
		for j := range t.Grants {
			grant := mapping(&t.Grants[j])
			delete(grant, "name")
			add(grants, t.Grants[j].Name, grant)
		}
		delete(entry, "name")
		if len(grants) > 0 {
			entry["grants"] = grants
		}
		add(tenants, t.Name, entry)
	}
	return map[string]any{"node": mapping(&s.Node), "gpus": gpus, "tenants": tenants}, nil
}

// add adds an entry under its name, or under the name with a number if there are several.
func add(to map[string]any, name string, entry any) {
	key := name
	for n := 2; to[key] != nil; n++ {
		key = fmt.Sprintf("%s#%d", name, n)
	}
	to[key] = entry
}

// selected names a selector.
func selected(s *api.Selector) string {
	switch {
	case s.All:
		return "all"
	case s.Model != "":
		return s.Model
	case len(s.UUID) > 0:
		return strings.Join(s.UUID, ",")
	case len(s.PCI) > 0:
		return strings.Join(s.PCI, ",")
	case len(s.PCIID) > 0:
		return strings.Join(s.PCIID, ",")
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint([]int(s.Index)), "[]"), " ", ",")
}

// mapping is a value as its JSON reads.
func mapping(v any) map[string]any {
	b, err := json.Marshal(v)
	out := map[string]any{}
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		panic("internal error: a spec has no JSON: " + err.Error())
	}
	return out
}

// differences lists the keys that differ, with their values where these are short.
func differences(path string, a, b map[string]any) (out []string) {
	keys := slices.Sorted(maps.Keys(a))
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		before, there := a[k]
		after, kept := b[k]
		at := strings.TrimPrefix(path+"."+k, ".")
		was, wasMap := before.(map[string]any)
		is, isMap := after.(map[string]any)
		old, wasList := before.([]any)
		now, isList := after.([]any)
		switch {
		case reflect.DeepEqual(before, after):
		case path == "" || wasMap && isMap:
			out = append(out, differences(at, was, is)...)
		case !there && isMap:
			out = append(out, "+ "+at)
		case !there:
			out = append(out, at+": "+value(after))
		case !kept:
			out = append(out, "- "+at)
		case wasList && isList:
			out = append(out, at+": "+members(old, now))
		default:
			out = append(out, at+": "+value(before)+" → "+value(after))
		}
	}
	return out
}

// members lists what a list has more and less than before.
func members(before, after []any) string {
	var out []string
	count := map[string]int{}
	for _, v := range before {
		count[value(v)]++
	}
	for _, v := range after {
		if count[value(v)]--; count[value(v)] < 0 {
			out = append(out, "+ "+value(v))
		}
	}
	for _, v := range before {
		if count[value(v)] > 0 {
			count[value(v)]--
			out = append(out, "- "+value(v))
		}
	}
	if len(out) == 0 {
		return "another order"
	}
	return shortened(strings.Join(out, ", "))
}

// value is a value in a few characters.
func value(v any) string {
	if s, ok := v.(string); ok {
		return shortened(s)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // ">=8GiB" is for people.
	if err := e.Encode(v); err != nil {
		return "?"
	}
	return shortened(strings.TrimSpace(b.String()))
}

func shortened(s string) string {
	if len(s) <= mostValue {
		return s
	}
	n := mostValue
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
