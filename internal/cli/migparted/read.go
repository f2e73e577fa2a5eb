// Package migparted reads the configuration files of NVIDIA's MIG partition editor in their published format. It converts a
// label to a part of a spec and lists what a spec cannot express. It changes nothing and queries no GPU.
package migparted

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Config is one file.
type Config struct {
	Labels  []Label  // in the order of the file
	Skipped []string // parts of the file that are none of a partition editor
}

// Label is one named configuration of a whole node.
type Label struct {
	Name    string
	Entries []Entry // applied in this order

	at string // where it is
}

// Label finds a label by name.
func (c *Config) Label(name string) *Label {
	for i := range c.Labels {
		if c.Labels[i].Name == name {
			return &c.Labels[i]
		}
	}
	return nil
}

const configs = "mig-configs"

// Read parses a file with one or more documents; name is for messages. It also accepts the config map in which the GPU
// operator stores such a file, and a list (kind: List) of them. What is not read is in Skipped.
func Read(name string, raw []byte) (*Config, error) {
	r := &reader{out: &Config{}}
	err := r.text(name, raw, false)
	switch {
	case err != nil:
		return nil, err
	case r.documents == 0:
		return nil, fmt.Errorf("cannot read %s: it is empty", name)
	case len(r.out.Labels) == 0:
		return nil, fmt.Errorf("cannot read %s: it has no %s (%s)", name, configs, strings.Join(r.out.Skipped, "; "))
	}
	return r.out, nil
}

type reader struct {
	out       *Config
	documents int
}

func (r *reader) skip(format string, args ...any) {
	r.out.Skipped = append(r.out.Skipped, fmt.Sprintf(format, args...))
}

// text reads the documents of a file, or of a value of a config map.
func (r *reader) text(name string, raw []byte, inside bool) error {
	t := &tree{file: name}
	for d := yaml.NewDecoder(bytes.NewReader(raw)); ; {
		var doc yaml.Node
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("cannot read %s: %w", name, err)
		}
		if top := doc.Content[0]; top.Tag == "!!null" { // Two marks in a row, or one at the end.
			continue
		}
		r.documents++
		if err := r.document(t, doc.Content[0], inside); err != nil {
			return err
		}
	}
}

// document reads a file of the partition editor, or an object of Kubernetes.
func (r *reader) document(t *tree, n *yaml.Node, inside bool) error {
	top, err := t.fields(n, "the file")
	if err != nil {
		return err
	}
	kind := top.get("kind")
	if kind == nil {
		return r.configs(t, n, top)
	}
	switch {
	case inside:
		return t.at(kind, "an object of Kubernetes (%s) cannot be in another one", kind.Value)
	case kind.Value == "ConfigMap":
		return r.configMap(t, kind, top)
	case strings.HasSuffix(kind.Value, "List"):
		items := top.get("items")
		if items == nil || items.Kind != yaml.SequenceNode {
			return t.at(kind, "%s has no items", kind.Value)
		}
		list, err := t.items(items)
		if err != nil {
			return err
		}
		for _, item := range list {
			object, err := t.fields(item, "an item")
			if err != nil {
				return err
			}
			if k := object.get("kind"); k == nil || strings.HasSuffix(k.Value, "List") {
				return t.at(item, "an item of %s has no kind, or is a list itself", kind.Value)
			}
			if err := r.document(t, item, inside); err != nil {
				return err
			}
		}
		return nil
	}
	r.skip("line %d: kind %s is no config map", kind.Line, kind.Value)
	return nil
}

// configMap reads each value of a config map that has configurations.
func (r *reader) configMap(t *tree, kind *yaml.Node, top mapping) error {
	if b := top.get("binaryData"); b != nil {
		r.skip("line %d: binaryData of the config map is not read", b.Line)
	}
	data := top.get("data")
	if data == nil || data.Tag == "!!null" {
		r.skip("line %d: the config map has no data", kind.Line)
		return nil
	}
	fields, err := t.fields(data, "data")
	if err != nil {
		return err
	}
	for _, f := range fields {
		if f.value.Kind != yaml.ScalarNode {
			return t.at(f.value, "a value of a config map must be text")
		}
		if !strings.Contains(f.value.Value, configs) {
			r.skip("line %d: %q of the config map has no %s", f.key.Line, f.key.Value, configs)
			continue
		}
		if err := r.text(t.file+", "+f.key.Value, []byte(f.value.Value), true); err != nil {
			return err
		}
	}
	return nil
}

// configs reads the configurations of one document.
func (r *reader) configs(t *tree, n *yaml.Node, top mapping) error {
	for _, f := range top {
		if f.key.Value != "version" && f.key.Value != configs {
			return t.at(f.key, "unknown key %q: a file of the MIG partition editor has version and %s", f.key.Value, configs)
		}
	}
	if v := top.get("version"); v == nil || v.Value != "v1" {
		return t.at(n, "version must be v1")
	}
	labels, err := t.fields(top.get(configs), configs)
	if err != nil {
		return err
	}
	if len(labels) == 0 {
		return t.at(n, "%s has no label", configs)
	}
	for _, f := range labels {
		l := Label{Name: f.key.Value, at: fmt.Sprintf("%s:%d", t.file, f.key.Line)}
		if f.value.Kind != yaml.SequenceNode || len(f.value.Content) == 0 {
			return t.at(f.value, "%s must be a list of entries", label(l.Name))
		}
		if twice := r.out.Label(l.Name); twice != nil {
			return t.at(f.key, "the label %s is also at %s: rename or remove one", label(l.Name), twice.at)
		}
		list, err := t.items(f.value)
		if err != nil {
			return err
		}
		if len(list) > mostEntries {
			return t.at(f.value, "%s has %d entries: at most %d are read", label(l.Name), len(list), mostEntries)
		}
		for _, item := range list {
			e, err := t.entry(item)
			if err != nil {
				return err
			}
			l.Entries = append(l.Entries, e)
		}
		r.out.Labels = append(r.out.Labels, l)
	}
	return nil
}
