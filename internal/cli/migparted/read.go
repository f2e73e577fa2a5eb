// Package migparted reads the configuration files of NVIDIA's MIG partition editor in their published format. It converts a
// label to a part of a spec and lists what a spec cannot express. It changes nothing and queries no GPU.
package migparted

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/mig"
)

// Config is one file.
type Config struct {
	Labels []Label // in the order of the file
}

// Label is one named configuration of a whole node.
type Label struct {
	Name    string
	Entries []Entry // applied in this order
}

// Entry is the desired state of some GPUs.
type Entry struct {
	Line    int
	Filter  []string // PCI device ids, "0x20B010DE"; empty: any board
	All     bool
	Devices []int // indexes, when not all
	Enabled bool
	Counts  []Count // in the order of the file
}

// Count is a number of instances of one profile.
type Count struct {
	Profile string
	N       int
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

// errorAt returns an error with its position in the file.
func errorAt(file string, n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %s", file, n.Line, n.Column, fmt.Sprintf(format, args...))
}

// Read parses a file; name is for messages. It also accepts the ConfigMap in which the GPU operator stores such a file.
func Read(name string, raw []byte) (*Config, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	if len(doc.Content) == 0 {
		return nil, fmt.Errorf("cannot read %s: it is empty", name)
	}
	top, err := fields(name, doc.Content[0], "the file")
	if err != nil {
		return nil, err
	}
	if kind := top.get("kind"); kind != nil && kind.Value == "ConfigMap" {
		data, err := fields(name, top.get("data"), "data")
		if err != nil {
			return nil, err
		}
		for _, f := range data {
			if strings.Contains(f.value.Value, "mig-configs:") {
				return Read(name+", "+f.key.Value, []byte(f.value.Value))
			}
		}
		return nil, fmt.Errorf("cannot read %s: it is a ConfigMap without mig-configs", name)
	}
	for _, f := range top {
		if f.key.Value != "version" && f.key.Value != "mig-configs" {
			return nil, errorAt(name, f.key, "unknown key %q: a file of the MIG partition editor has version and mig-configs", f.key.Value)
		}
	}
	if v := top.get("version"); v == nil || v.Value != "v1" {
		return nil, errorAt(name, doc.Content[0], "version must be v1")
	}
	labels, err := fields(name, top.get("mig-configs"), "mig-configs")
	if err != nil {
		return nil, err
	}
	out := &Config{}
	for _, f := range labels {
		l := Label{Name: f.key.Value}
		if f.value.Kind != yaml.SequenceNode || len(f.value.Content) == 0 {
			return nil, errorAt(name, f.value, "%s must be a list of entries", l.Name)
		}
		for _, n := range f.value.Content {
			e, err := entry(name, n)
			if err != nil {
				return nil, err
			}
			l.Entries = append(l.Entries, e)
		}
		out.Labels = append(out.Labels, l)
	}
	if len(out.Labels) == 0 {
		return nil, errorAt(name, doc.Content[0], "mig-configs has no label")
	}
	return out, nil
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

// fields returns the fields of a mapping in their order. It refuses a key that is there twice.
func fields(file string, n *yaml.Node, what string) (mapping, error) {
	if n == nil {
		return nil, fmt.Errorf("cannot read %s: it has no %s", file, what)
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return nil, errorAt(file, n, "%s must be a mapping", what)
	}
	var out mapping
	for i := 0; i+1 < len(n.Content); i += 2 {
		if out.get(n.Content[i].Value) != nil {
			return nil, errorAt(file, n.Content[i], "%s has %q twice", what, n.Content[i].Value)
		}
		value := n.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		out = append(out, field{n.Content[i], value})
	}
	return out, nil
}

func entry(file string, n *yaml.Node) (Entry, error) {
	e := Entry{Line: n.Line}
	list, err := fields(file, n, "an entry")
	if err != nil {
		return e, err
	}
	for _, must := range []string{"devices", "mig-enabled"} {
		if list.get(must) == nil {
			return e, errorAt(file, n, "the entry has no %s", must)
		}
	}
	for _, f := range list {
		switch f.key.Value {
		case "device-filter":
			err = stringOrList(f.value, &e.Filter)
		case "devices":
			err = e.devices(f.value)
		case "mig-enabled":
			err = f.value.Decode(&e.Enabled)
		case "mig-devices":
			err = e.counts(f.value)
		default:
			err = fmt.Errorf("unknown key %q: an entry has devices, device-filter, mig-enabled and mig-devices", f.key.Value)
		}
		if err != nil {
			return e, errorAt(file, f.value, "%s: %v", f.key.Value, err)
		}
	}
	switch {
	case e.Enabled && list.get("mig-devices") == nil:
		return e, errorAt(file, n, "mig-enabled is true, so mig-devices is required; {} is an empty layout")
	case !e.Enabled && len(e.Counts) > 0:
		return e, errorAt(file, n, "mig-enabled is false, but mig-devices is not empty")
	}
	return e, nil
}

// stringOrList decodes a string or a list of strings.
func stringOrList(n *yaml.Node, into *[]string) error {
	var one string
	if n.Kind == yaml.ScalarNode {
		if err := n.Decode(&one); err != nil || one == "" {
			return err
		}
		*into = []string{one}
		return nil
	}
	return n.Decode(into)
}

func (e *Entry) devices(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		if e.All = n.Value == "all"; !e.All {
			return fmt.Errorf("%q: must be all or a list of GPU numbers", n.Value)
		}
		return nil
	}
	if err := n.Decode(&e.Devices); err != nil {
		return errors.New("must be all or a list of GPU numbers")
	}
	for _, d := range e.Devices {
		if d < 0 {
			return fmt.Errorf("invalid GPU number %d", d)
		}
	}
	return nil
}

func (e *Entry) counts(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return errors.New("must be a mapping of profiles to numbers")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		c := Count{Profile: n.Content[i].Value}
		if _, err := mig.ParseProfile(c.Profile); err != nil {
			return err
		}
		if err := n.Content[i+1].Decode(&c.N); err != nil || c.N < 0 {
			return fmt.Errorf("invalid number %q of %s", n.Content[i+1].Value, c.Profile)
		}
		e.Counts = append(e.Counts, c)
	}
	return nil
}
