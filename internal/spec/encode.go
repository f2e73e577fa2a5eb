package spec

import (
	"bytes"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/api"
)

// Encode gives the canonical text of a spec: keys in the order of the documentation, one spelling for each value, short
// things on one line. Two specs that mean the same as written have the same text.
func Encode(s *api.Spec) ([]byte, error) {
	n, err := encode(reflect.ValueOf(s).Elem())
	if err != nil {
		return nil, fmt.Errorf("cannot encode the spec: %w", err)
	}
	var b bytes.Buffer
	y := yaml.NewEncoder(&b)
	y.SetIndent(2)
	if err := y.Encode(n); err != nil {
		return nil, fmt.Errorf("cannot encode the spec: %w", err)
	}
	if err := y.Close(); err != nil {
		return nil, fmt.Errorf("cannot encode the spec: %w", err)
	}
	return b.Bytes(), nil
}

func encode(v reflect.Value) (*yaml.Node, error) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case encoding.TextMarshaler:
		t, err := x.MarshalText()
		return scalar(string(t)), err
	case api.LayoutItem:
		if x.Profile != "" {
			return scalar(x.Profile), nil
		}
	case api.OnOff:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: string(x)}, nil
	}
	n := &yaml.Node{}
	switch v.Kind() {
	case reflect.Struct:
		n.Kind = yaml.MappingNode
		for i := range v.NumField() {
			name, option, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			f := v.Field(i)
			empty := (f.Kind() == reflect.Slice || f.Kind() == reflect.Map) && f.Len() == 0
			if option != "" && f.IsZero() || option == "omitempty" && empty {
				continue // For some lists an empty one is not the same as none: omitzero.
			}
			member, err := encode(f)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			n.Content = append(n.Content, scalar(name), member)
		}
	case reflect.Map:
		n.Kind = yaml.MappingNode
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			member, err := encode(v.MapIndex(k))
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, scalar(k.String()), member)
		}
	case reflect.Slice:
		if _, either := reflect.New(v.Type()).Interface().(interface{ UnmarshalJSON([]byte) error }); either && v.Len() == 1 {
			return encode(v.Index(0))
		}
		n.Kind = yaml.SequenceNode
		for i := range v.Len() {
			item, err := encode(v.Index(i))
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, item)
		}
	case reflect.String:
		return scalar(v.String()), nil
	default:
		return n, n.Encode(v.Interface())
	}
	switch v.Interface().(type) {
	case api.Spec, api.NodeSpec, api.GPUSpec, api.TenantSpec:
		return n, nil // important keys are on lines of their own
	}
	if small(n) {
		n.Style = yaml.FlowStyle
	}
	return n, nil
}

// scalar is text, in quotes only where YAML would take it for something else.
func scalar(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	var plain yaml.Node
	if n.Style == 0 && (yaml.Unmarshal([]byte("["+s+"]"), &plain) != nil || !isJust(&plain, s)) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// isJust reports whether [s] was read as one plain text.
func isJust(document *yaml.Node, s string) bool {
	list := document.Content[0]
	if list.Kind != yaml.SequenceNode || len(list.Content) != 1 {
		return false
	}
	n := list.Content[0]
	return n.Kind == yaml.ScalarNode && n.Style == 0 && n.Value == s && n.ShortTag() == "!!str" && n.Anchor == ""
}

// small reports whether a value fits on one line: a list of words, or up to four short members.
func small(n *yaml.Node) bool {
	width := 0
	for _, c := range n.Content {
		if c.Kind != yaml.ScalarNode && (n.Kind == yaml.SequenceNode || c.Style != yaml.FlowStyle || len(c.Content) > 8) {
			return false
		}
		width += len(c.Value) + 2
		for _, cc := range c.Content {
			if cc.Kind != yaml.ScalarNode {
				return false
			}
			width += len(cc.Value) + 2
		}
	}
	return width <= 90 && (n.Kind == yaml.SequenceNode || len(n.Content) <= 8)
}
