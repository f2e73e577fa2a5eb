package gpu

import (
	"fmt"
	"strings"
)

// MissingMIG lists the functions of MIG that a library lacks. Of functions with versions, the preferred one is named.
type MissingMIG struct {
	Library string   `json:"library"`          // the version of the library, or its path where it reports no version
	Read    []string `json:"read,omitempty"`   // to read the mode, the profiles and the instances
	Mode    []string `json:"mode,omitempty"`   // to change the mode
	Change  []string `json:"change,omitempty"` // to create and destroy instances
	// Device are those that find the MIG device of a compute instance, where its information does not contain it.
	Device []string `json:"device,omitempty"`
	// Placements are those that report the placement of a compute instance.
	Placements []string `json:"placements,omitempty"`
	// Place are those that create a compute instance at a placement. Instances can be changed without them.
	Place []string `json:"place,omitempty"`
}

// CanRead returns the error where MIG cannot be read. Nothing is known of the GPU's MIG mode and instances then. A nil receiver
// lacks nothing.
func (m *MissingMIG) CanRead() error {
	if m == nil {
		return nil
	}
	return m.lacks(m.Read)
}

// CanChange returns the error where instances cannot be read, created or destroyed, or, with mode, the mode cannot be set.
func (m *MissingMIG) CanChange(mode bool) error {
	if m == nil {
		return nil
	}
	list := append(append([]string{}, m.Read...), m.Change...)
	if mode {
		list = append(list, m.Mode...)
	}
	return m.lacks(list)
}

// CanSetMode returns the error where the mode cannot be read or set.
func (m *MissingMIG) CanSetMode() error {
	if m == nil {
		return nil
	}
	return m.lacks(append(append([]string{}, m.Read...), m.Mode...))
}

// NoDevice is why the MIG device of a compute instance is not known.
func (m *MissingMIG) NoDevice() error {
	if m == nil {
		return fmt.Errorf("the driver does not report the MIG device of its compute instance")
	}
	if err := m.lacks(m.Device); err != nil {
		return fmt.Errorf("its MIG device cannot be found: %w", err)
	}
	return (*MissingMIG)(nil).NoDevice()
}

// NoIdentity says that compute instances of one size cannot be distinguished, and which functions that needs, where the library lacks them.
func (m *MissingMIG) NoIdentity() string {
	const why = "the driver reports neither placement nor UUID of its compute instances"
	if m == nil || len(m.Placements)+len(m.Device) == 0 {
		return why
	}
	return why + " (" + m.lacks(append(append([]string{}, m.Placements...), m.Device...)).Error() + ")"
}

// MayIdentify reports whether the library has functions that report the placement or the UUID of a compute instance. The driver
// may report neither nevertheless.
func (m *MissingMIG) MayIdentify() bool {
	return m == nil || len(m.Placements) == 0 || len(m.Device) == 0
}

func (m *MissingMIG) lacks(functions []string) error {
	if len(functions) == 0 {
		return nil
	}
	return &LacksFunctions{Library: m.Library, Functions: functions}
}

// LacksFunctions is the error for what needs functions that the library lacks.
type LacksFunctions struct {
	Library   string
	Functions []string
}

// Error names the library and the functions.
func (e *LacksFunctions) Error() string {
	return fmt.Sprintf("the NVML library %s lacks %s", e.Library, strings.Join(e.Functions, ", "))
}

// Unwrap returns ErrMissing.
func (*LacksFunctions) Unwrap() error { return ErrMissing }
