package migparted

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Aliases make a short file a long one: a list of lists of aliases is exponential. No file of a real node comes near these.
const (
	mostNodes = 200_000 // values that are read in one file, through aliases too
	mostDepth = 20      // aliases and merges in each other
)

var errTooLong = errors.New("its aliases make it too long to read: write the values out")

// tree reads the values of one file.
type tree struct {
	file     string
	followed int
}

// at returns an error with its position in the file.
func (t *tree) at(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %s", t.file, n.Line, n.Column, fmt.Sprintf(format, args...))
}

// follow counts a value and follows its aliases.
func (t *tree) follow(n *yaml.Node) (*yaml.Node, error) {
	for depth := 0; n.Kind == yaml.AliasNode; depth++ {
		if depth == mostDepth {
			return nil, t.at(n, "%v", errTooLong)
		}
		n = n.Alias
	}
	if t.followed++; t.followed > mostNodes {
		return nil, t.at(n, "%v", errTooLong)
	}
	return n, nil
}

type field struct{ key, value *yaml.Node }

type mapping []field

func (m mapping) get(key string) *yaml.Node {
	for _, f := range m {
		if f.key.Value == key {
			return f.value
		}
	}
	return nil
}

// fields returns the fields of a mapping in their order, then those of its merge keys (<<) that it does not have itself. It
// refuses a key that is there twice.
func (t *tree) fields(n *yaml.Node, what string) (mapping, error) {
	return t.merged(n, what, 0)
}

func (t *tree) merged(n *yaml.Node, what string, depth int) (mapping, error) {
	if n == nil {
		return nil, fmt.Errorf("cannot read %s: it has no %s", t.file, what)
	}
	n, err := t.follow(n)
	if err != nil {
		return nil, err
	}
	switch {
	case n.Kind != yaml.MappingNode:
		return nil, t.at(n, "%s must be a mapping", what)
	case depth > mostDepth:
		return nil, t.at(n, "%v", errTooLong)
	}
	var out mapping
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, err := t.follow(n.Content[i])
		if err != nil {
			return nil, err
		}
		if key.Tag == "!!merge" {
			merges = append(merges, n.Content[i+1])
			continue
		}
		if out.get(key.Value) != nil {
			return nil, t.at(key, "%s has %q twice", what, key.Value)
		}
		value, err := t.follow(n.Content[i+1])
		if err != nil {
			return nil, err
		}
		out = append(out, field{key, value})
	}
	for _, m := range merges {
		if out, err = t.merge(out, m, depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// merge adds what a merge key names, a mapping or a list of them, of which an earlier one has precedence.
func (t *tree) merge(out mapping, from *yaml.Node, depth int) (mapping, error) {
	from, err := t.follow(from)
	if err != nil {
		return nil, err
	}
	list := []*yaml.Node{from}
	if from.Kind == yaml.SequenceNode {
		list = from.Content
	}
	for _, n := range list {
		more, err := t.merged(n, "what a merge key (<<) names", depth+1)
		if err != nil {
			return nil, err
		}
		for _, f := range more {
			if out.get(f.key.Value) == nil {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

// items returns the items of a list.
func (t *tree) items(n *yaml.Node) ([]*yaml.Node, error) {
	out := make([]*yaml.Node, 0, len(n.Content))
	for _, c := range n.Content {
		c, err := t.follow(c)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}
