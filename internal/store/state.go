package store

import (
	"encoding/json"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/rename"
)

// State is everything that must outlive the daemon and the boot. New fields keep the format.
type State struct {
	// Epoch is the one in which the state was written. Hardware state of another epoch is void.
	Epoch Epoch `json:"epoch"`
	// Accepted is the spec in force, nil before the first.
	Accepted *Accepted `json:"accepted,omitempty"`
	// Revisions are the last specs that were accepted, oldest first. The one in force is among them.
	Revisions []Revision `json:"revisions,omitempty"`
	// Renames are the names of tenants and grants that specs replaced, oldest first: what is recorded elsewhere may have the former ones.
	Renames rename.List `json:"renames,omitempty"`
	// Achieved is what each GPU was last read back as having reached.
	Achieved map[gpu.UUID]Achieved `json:"achieved,omitempty"`
	// Unconfirmed are the GPUs on which a change failed whose outcome was not read back.
	Unconfirmed map[gpu.UUID]Unconfirmed `json:"unconfirmed,omitempty"`
	// Closures are why places take no lease, in the order in which they were closed.
	Closures []Closure `json:"closures,omitempty"`
	// Acknowledged are the conditions that administrators acknowledged, by their ids.
	Acknowledged map[string]Acknowledged `json:"acknowledged,omitempty"`
	// Change is the record of the change under way, of the engine's type; empty when there is none.
	Change json.RawMessage `json:"change,omitempty"`
	// LastInstanceGeneration is the highest generation of an instance. No generation is used twice.
	LastInstanceGeneration uint64 `json:"last_instance_generation,omitempty"`
	// StepDurations are the durations of steps, by the model of GPU and the kind of step.
	StepDurations map[string]map[string]Duration `json:"step_durations,omitempty"`
	// LastOperation is the number of the last operation. No number is used twice.
	LastOperation uint64 `json:"last_operation,omitempty"`
	// StoppedUnits are the units that a change stopped and could not start again.
	StoppedUnits []string `json:"stopped_units,omitempty"`
	// ActiveRestrictions: a spec was enforced since the node was last unmanaged, so restrictions may be active.
	ActiveRestrictions bool `json:"active_restrictions,omitempty"`
	// CreatedSlices are the cgroup slices that a spec requested and that may exist. Other slices are never removed. nil: it
	// was not recorded.
	CreatedSlices map[string]bool `json:"created_slices"`
	// Identities are what the GPUs were when the last change was accepted: a GPU that is lost when the daemon starts has neither
	// an index nor a model.
	Identities map[gpu.UUID]gpu.Identity `json:"identities,omitempty"`
	// MissingSince is since when the driver does not find GPUs of the spec in force.
	MissingSince map[gpu.UUID]time.Time `json:"missing_since,omitempty"`
	// OriginalModes are the modes of GPUs before gpushare changed them first. Unmanaging all restores them.
	OriginalModes map[gpu.UUID]GPUModes `json:"original_modes,omitempty"`
	// Profiles are the MIG profiles of each model, as the driver last reported them. Drivers up to branch 550 report none while
	// MIG mode is off.
	Profiles map[string]ReportedProfiles `json:"profiles,omitempty"`
	// Audit is a line of the audit that was on the disk: it is recorded at start, each hour and at the end.
	Audit *AuditPoint `json:"audit,omitempty"`
}

// ReportedProfiles are the MIG profiles of a model of GPU, by a version of the driver.
type ReportedProfiles struct {
	Driver   string       `json:"driver"`
	Profiles gpu.Profiles `json:"profiles"`
}

// AuditPoint is a line of the audit, so that a removed end and a removed anchor are found.
type AuditPoint struct {
	Number uint64    `json:"number"`
	SHA256 string    `json:"sha256"`
	At     time.Time `json:"at"`
}

// Epoch makes hardware state void when it differs: instances do not survive a boot, a driver load or a reset.
type Epoch struct {
	Boot   string              `json:"boot"`             // the kernel's boot id
	Driver string              `json:"driver,omitempty"` // names one load of the driver; empty without a driver
	Resets map[gpu.UUID]uint64 `json:"resets,omitempty"` // GPU resets counted since the driver was loaded
}

// Accepted is a spec whose acceptance was acknowledged.
type Accepted struct {
	Revision
	Resolved Resolved `json:"resolved"`
	// Overuse is the default of overuse.gpu_memory in the version that accepted it; empty: a version before it was recorded.
	Overuse string `json:"overuse,omitempty"`
}

// Revision is one accepted spec as it was written.
type Revision struct {
	Generation uint64    `json:"generation"` // from 1
	By         string    `json:"by"`
	At         time.Time `json:"at"`
	YAML       string    `json:"yaml"`
	// Unmanaged is set when this revision unmanaged the node: one of the constants below.
	Unmanaged string `json:"unmanaged,omitempty"`
}

// What unmanaging a node removed.
const (
	UnmanagedRestrictions = "restrictions" // no process is restricted; the spec is kept and observed
	UnmanagedAll          = "all"          // and GPUs are in their original modes; there is no spec
)

// Resolved is what the selectors of the accepted spec meant when it was accepted, in the shape of package spec's type of
// this name: either converts to the other.
type Resolved struct {
	GPUs   map[gpu.UUID]int      `json:"gpus"`
	Grants map[string][]gpu.UUID `json:"grants"`
}

// Achieved is what one GPU reached.
type Achieved struct {
	Generation uint64           `json:"generation"` // of the spec that was carried out
	Epoch      Epoch            `json:"epoch"`      // in which it was read back
	MIG        bool             `json:"mig"`        // MIG mode is on
	Layout     []gpu.Instance   `json:"layout,omitempty"`
	Instances  []InstanceRecord `json:"instances,omitempty"` // of the layout's instances
}

// Unconfirmed is what a failed change of a GPU may have created, or may create yet.
type Unconfirmed struct {
	Since   time.Time         `json:"since"`
	Epoch   Epoch             `json:"epoch"` // of the change: instances end with it
	Created []CreatedInstance `json:"created"`
}

// CreatedInstance is an instance that a step creates.
type CreatedInstance struct {
	ProfileID uint32        `json:"profile_id"`
	Placement gpu.Placement `json:"placement"`
}

// Is reports whether an instance is the created one.
func (c CreatedInstance) Is(in gpu.Instance) bool {
	return in.ProfileID == c.ProfileID && in.Placement == c.Placement
}

// InstanceRecord is what the driver does not report of a MIG instance that gpushare manages.
type InstanceRecord struct {
	Placement gpu.Placement `json:"placement"`
	// Generation is never used twice. An instance that is created again has the UUIDs of the one before, and another
	// generation.
	Generation uint64 `json:"generation"`
	Imported   bool   `json:"imported,omitempty"` // another tool created it, and an administrator imported it
	Missing    bool   `json:"missing,omitempty"`  // the last observation of the GPU did not have it
}

// Duration is how long steps of one kind take.
type Duration struct {
	Count       uint64  `json:"count"`
	MeanSeconds float64 `json:"mean_seconds"` // recent steps count more
}

// GPUModes are the modes of one GPU. A mode that gpushare never changed is not set.
type GPUModes struct {
	MIG         *bool           `json:"mig,omitempty"` // MIG mode
	ComputeMode gpu.ComputeMode `json:"compute_mode,omitempty"`
}

// Acknowledged is who acknowledged a condition, and until when. Until is zero without an end.
type Acknowledged struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
}

// keepRevisions is how many accepted specs a rollback can choose from.
const keepRevisions = 20

// Accept puts a spec in force and returns its generation.
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

// Unmanage puts the spec of an unmanaged node in force. what is one of the constants above.
func (s *State) Unmanage(yaml, by string, at time.Time, resolved Resolved, what string) uint64 {
	generation := s.Accept(yaml, by, at, resolved)
	s.Accepted.Unmanaged = what
	s.Revisions[len(s.Revisions)-1].Unmanaged = what
	return generation
}
