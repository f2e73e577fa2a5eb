package store

import (
	"encoding/json"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// State is everything that must outlive the daemon and the boot. New fields keep the format.
type State struct {
	// Epoch is the one in which the state was written. Hardware that belongs to another one is gone.
	Epoch Epoch `json:"epoch"`
	// Accepted is the spec in force, nil before the first.
	Accepted *Accepted `json:"accepted,omitempty"`
	// Revisions are the last specs that were accepted, the one in force included, oldest first.
	Revisions []Revision `json:"revisions,omitempty"`
	// Achieved is what each GPU was last read back as having reached.
	Achieved map[gpu.UUID]Achieved `json:"achieved,omitempty"`
	// Held are the GPUs on which a change failed and that are left alone until somebody says retry.
	Held map[gpu.UUID]Held `json:"held,omitempty"`
	// Change is the record of the change under way, of the engine's own type; empty when there is none.
	Change json.RawMessage `json:"change,omitempty"`
	// LastInstanceGeneration counts the instances that were ours, so that their generations never come twice.
	LastInstanceGeneration uint64 `json:"instances,omitempty"`
	// StepDurations is how long steps took, by the model of GPU and the kind of step.
	StepDurations map[string]map[string]Duration `json:"times,omitempty"`
	// LastOperation counts the operations begun, so that their ids never come twice.
	LastOperation uint64 `json:"operations,omitempty"`
	// StoppedUnits names the units that a change stopped and could not start again.
	StoppedUnits []string `json:"stopped,omitempty"`
	// ActiveRestrictions tells that something of ours may stand on the node: a spec was enforced since the node was last given back.
	ActiveRestrictions bool `json:"standing,omitempty"`
	// CreatedSlices names the slices that a spec asked for and that may be there: no other is ours to take away. nil: nobody kept it.
	CreatedSlices map[string]bool `json:"made"`
	// OriginalModes is what the modes of GPUs were before we changed them the first time: what they are given back as.
	OriginalModes map[gpu.UUID]GPUModes `json:"found,omitempty"`
}

// Epoch is what makes hardware state void when it differs: instances die with the boot, with the driver and with a reset.
type Epoch struct {
	Boot   string              `json:"boot"`             // the kernel's boot id
	Driver string              `json:"driver,omitempty"` // names one load of the driver; empty without a driver
	Resets map[gpu.UUID]uint64 `json:"resets,omitempty"` // GPU resets counted since the driver was loaded
}

// Accepted is a spec that was acknowledged to somebody.
type Accepted struct {
	Revision
	Resolved Resolved `json:"resolved"`
}

// Revision is one accepted spec as it was written.
type Revision struct {
	Generation uint64    `json:"generation"` // from 1
	By         string    `json:"who"`
	At         time.Time `json:"at"`
	YAML       string    `json:"yaml"`
	// Unmanaged is set when the node was given back with this: one of the constants below.
	Unmanaged string `json:"released,omitempty"`
}

// How much of a node was given back.
const (
	UnmanagedRestrictions = "walls" // nobody is held any more; the spec is kept, and observed
	UnmanagedAll          = "all"   // and GPUs are as they were found; there is no spec any more
)

// Resolved is what the selectors of the accepted spec meant when it was accepted, in the shape of package spec's type of
// this name: either converts to the other.
type Resolved struct {
	GPUs   map[gpu.UUID]int      `json:"gpus"`
	Grants map[string][]gpu.UUID `json:"grants"`
}

// Achieved is what one GPU reached.
type Achieved struct {
	Generation uint64           `json:"generation"` // of the spec that asked for it
	Epoch      Epoch            `json:"epoch"`      // in which it was read back
	MIG        bool             `json:"mig"`        // MIG mode is on
	Layout     []gpu.Instance   `json:"layout,omitempty"`
	Instances  []InstanceRecord `json:"marks,omitempty"` // of the layout's instances
}

// InstanceRecord is what the driver does not tell of an instance of ours.
type InstanceRecord struct {
	Placement gpu.Placement `json:"placement"`
	// Generation is never given twice: an instance that is made again has the UUIDs of the one before, and another number.
	Generation uint64 `json:"generation"`
	Imported   bool   `json:"adopted,omitempty"` // somebody else made it, and an administrator said that it is ours
	Missing    bool   `json:"gone,omitempty"`    // it was not there when the GPU was looked at last
}

// Duration is how long steps of one kind took.
type Duration struct {
	Count       uint64  `json:"count"`
	MeanSeconds float64 `json:"mean"` // seconds; what is long ago counts little
}

// GPUModes is what one GPU was before us. What we never changed is not set.
type GPUModes struct {
	MIG         *bool           `json:"mig,omitempty"` // MIG mode
	ComputeMode gpu.ComputeMode `json:"compute_mode,omitempty"`
}

// Held says why a GPU is left alone.
type Held struct {
	Generation uint64    `json:"generation"` // of the spec that was tried
	Reason     string    `json:"reason"`
	Since      time.Time `json:"since"`
}

// keepRevisions is how many accepted specs can be gone back to.
const keepRevisions = 20

// Accept makes a spec the one in force and gives its generation.
func (s *State) Accept(yaml, by string, at time.Time, resolved Resolved) uint64 {
	generation := uint64(1)
	if s.Accepted != nil {
		generation = s.Accepted.Generation + 1
	}
	r := Revision{Generation: generation, By: by, At: at.UTC(), YAML: yaml}
	s.Accepted = &Accepted{Revision: r, Resolved: resolved}
	s.Revisions = append(s.Revisions, r)
	if n := len(s.Revisions) - keepRevisions; n > 0 {
		s.Revisions = s.Revisions[n:]
	}
	return generation
}

// Unmanage makes the spec of a node that was given back the one in force. What was given back is one of the constants.
func (s *State) Unmanage(yaml, by string, at time.Time, resolved Resolved, what string) uint64 {
	generation := s.Accept(yaml, by, at, resolved)
	s.Accepted.Unmanaged = what
	s.Revisions[len(s.Revisions)-1].Unmanaged = what
	return generation
}
