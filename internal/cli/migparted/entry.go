package migparted

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/mig"
)

// How much is read: what a spec may have.
const (
	mostEntries   = 200 // of one label
	mostInstances = 16  // of one GPU; no board has more than 8 memory slices
	mostGPUs      = 128
	mostIndex     = 1 << 16
	maxShown      = 80 // bytes of a wrong value in a message
)

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

// label shows the name of a label in a message of one line.
func label(name string) string {
	if name == "" || plain(name) != name {
		return fmt.Sprintf("%q", text.Short(name, maxShown))
	}
	return text.Short(name, maxShown)
}

func (t *tree) entry(n *yaml.Node) (Entry, error) {
	e := Entry{Line: n.Line}
	list, err := t.fields(n, "an entry")
	if err != nil {
		return e, err
	}
	for _, must := range []string{"devices", "mig-enabled"} {
		if list.get(must) == nil {
			return e, t.at(n, "the entry has no %s", must)
		}
	}
	for _, f := range list {
		switch f.key.Value {
		case "device-filter":
			err = t.filter(f.value, &e)
		case "devices":
			err = t.devices(f.value, &e)
		case "mig-enabled":
			err = f.value.Decode(&e.Enabled)
		case "mig-devices":
			err = t.counts(f.value, &e)
		default:
			err = fmt.Errorf(
				"unknown key %q: an entry has devices, device-filter, mig-enabled and mig-devices", text.Short(f.key.Value, maxShown),
			)
		}
		if err != nil {
			return e, t.at(f.value, "%s: %v", text.Short(f.key.Value, maxShown), err)
		}
	}
	devices := list.get("mig-devices")
	switch {
	case e.Enabled && (devices == nil || devices.Tag == "!!null"):
		return e, t.at(n, "mig-enabled is true, so mig-devices is required; {} is an empty layout")
	case !e.Enabled && len(e.Counts) > 0:
		return e, t.at(n, "mig-enabled is false, but mig-devices is not empty")
	}
	return e, nil
}

// filter reads a PCI id or a list of them.
func (t *tree) filter(n *yaml.Node, e *Entry) error {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		var err error
		if list, err = t.items(n); err != nil {
			return err
		}
	}
	for _, item := range list {
		if item.Kind != yaml.ScalarNode {
			return errors.New("must be a PCI id or a list of them")
		}
		if item.Value != "" && item.Tag != "!!null" {
			e.Filter = append(e.Filter, item.Value)
		}
	}
	if len(e.Filter) > mostGPUs {
		return fmt.Errorf("has %d PCI ids: at most %d are read", len(e.Filter), mostGPUs)
	}
	return nil
}

func (t *tree) devices(n *yaml.Node, e *Entry) error {
	if n.Kind == yaml.ScalarNode {
		if e.All = n.Value == "all"; !e.All {
			return fmt.Errorf("%q: must be all or a list of GPU numbers", text.Short(n.Value, maxShown))
		}
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		return errors.New("must be all or a list of GPU numbers")
	}
	if len(n.Content) > mostGPUs {
		return fmt.Errorf("has %d GPU numbers: at most %d are read", len(n.Content), mostGPUs)
	}
	list, err := t.items(n)
	if err != nil {
		return err
	}
	for _, item := range list {
		var d int
		if err := item.Decode(&d); err != nil {
			return errors.New("must be all or a list of GPU numbers")
		}
		if d < 0 || d > mostIndex {
			return fmt.Errorf("invalid GPU number %d", d)
		}
		e.Devices = append(e.Devices, d)
	}
	return nil
}

func (t *tree) counts(n *yaml.Node, e *Entry) error {
	if n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return errors.New("must be a mapping of profiles to numbers")
	}
	list, err := t.fields(n, "mig-devices")
	if err != nil {
		return err
	}
	total := 0
	for _, f := range list {
		p, err := mig.ParseProfile(f.key.Value)
		if err != nil {
			return err
		}
		c := Count{Profile: p.String()}
		shown := text.Short(f.value.Value, maxShown)
		if err := f.value.Decode(&c.N); err != nil || c.N < 0 {
			return fmt.Errorf("invalid number %q of %s", shown, c.Profile)
		}
		if c.N > mostInstances || total+c.N > mostInstances {
			return fmt.Errorf("%s of %s are too many: a GPU has at most %d instances", shown, c.Profile, mostInstances)
		}
		total += c.N
		for _, before := range e.Counts {
			if before.Profile == c.Profile { // Written in two ways, as 1g.24gb+gfx+me.all and 1g.24gb+me.all+gfx.
				return fmt.Errorf("it has %s twice", c.Profile)
			}
		}
		e.Counts = append(e.Counts, c)
	}
	return nil
}
