package cgroup

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/cgroup/device"
)

// setDeviceRules sets the device rules of the cgroup, or removes them when it is not closed.
func (t *Tree) setDeviceRules(cg string, closed bool, rules []DeviceRule) (wrote bool, err error) {
	switch {
	case !t.info.Devices:
		return false, nil // Info.Devices reports it
	case closed:
		wrote, err = device.SetRules(t.h.Dir(cg), numbersOf(rules))
	default:
		wrote, err = device.RemoveRules(t.h.Dir(cg))
	}
	if errors.Is(err, device.ErrNoCgroup) {
		err = fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	return wrote, err
}

// deviceRules reads the cgroup's device rules back from the kernel.
func (t *Tree) deviceRules(cg string) (closed bool, rules []DeviceRule, err error) {
	if !t.info.Devices {
		return false, nil, nil
	}
	numbers, closed, err := device.Rules(t.h.Dir(cg))
	if errors.Is(err, device.ErrNoCgroup) {
		err = ErrNotFound
	}
	rules = make([]DeviceRule, 0, len(numbers))
	for _, r := range numbers {
		rules = append(rules, DeviceRule{Type: r.Type, Major: r.Major, Minor: r.Minor, Access: r.Access})
	}
	return closed, rules, err
}

// renewDeviceRules replaces the device program of another version of gpushare by this version's, with the same rules.
func (t *Tree) renewDeviceRules(cg string) error {
	closed, rules, err := t.deviceRules(cg)
	if err == nil && closed {
		_, err = t.setDeviceRules(cg, closed, rules)
	}
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func numbersOf(rules []DeviceRule) []device.Rule {
	out := make([]device.Rule, 0, len(rules))
	for _, r := range rules {
		out = append(out, device.Rule{Type: r.Type, Major: r.Major, Minor: r.Minor, Access: r.Access})
	}
	return out
}

// ScopeDeviceRules reads the device rules of a scope back; closed is false when it has none.
func (t *Tree) ScopeDeviceRules(_ context.Context, id string) (closed bool, rules []DeviceRule, err error) {
	scope, err := t.scope(id)
	if err != nil {
		return false, nil, err
	}
	return t.deviceRules(scope)
}

// SetScopeDeviceRules makes these the only devices that a running scope may open.
func (t *Tree) SetScopeDeviceRules(_ context.Context, id string, rules []DeviceRule) error {
	scope, err := t.scope(id)
	if err != nil {
		return err
	}
	if _, err := t.setDeviceRules(scope, true, rules); err != nil {
		return fmt.Errorf("cannot set the device rules of scope %s: %w", id, err)
	}
	return nil
}
