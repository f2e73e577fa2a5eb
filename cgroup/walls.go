package cgroup

import (
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/cgroup/device"
)

// setWall makes the cgroup's device wall be this, or takes it away.
func (t *Tree) setWall(cg string, closed bool, rules []DeviceRule) (wrote bool, err error) {
	switch {
	case !t.info.Devices:
		return false, nil // Info says so
	case closed:
		wrote, err = device.SetWall(t.h.Dir(cg), numbersOf(rules))
	default:
		wrote, err = device.RemoveWall(t.h.Dir(cg))
	}
	if errors.Is(err, device.ErrNoCgroup) {
		err = fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	return wrote, err
}

// wall reads the cgroup's device wall back from the kernel.
func (t *Tree) wall(cg string) (closed bool, rules []DeviceRule, err error) {
	if !t.info.Devices {
		return false, nil, nil
	}
	numbers, closed, err := device.Wall(t.h.Dir(cg))
	if errors.Is(err, device.ErrNoCgroup) {
		err = ErrNotFound
	}
	for _, r := range numbers {
		rules = append(rules, DeviceRule{Type: r.Type, Major: r.Major, Minor: r.Minor, Access: r.Access})
	}
	return closed, rules, err
}

// renewWall replaces the program of another version of ours by this one's, with the same rules.
func (t *Tree) renewWall(cg string) error {
	closed, rules, err := t.wall(cg)
	if err == nil && closed {
		_, err = t.setWall(cg, closed, rules)
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
