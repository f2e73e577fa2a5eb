package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// The cpu controller, where systemd mounts it without and with cgroup v1.
var cpuHierarchies = []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"}

// processorSlices are cgroups that share the processor as systemd does: the system and all users one half each, and each user as
// much as another. A host of the product has them.
type processorSlices struct{ root string }

// newProcessorSlices fails where there is no cpu controller.
func newProcessorSlices() (*processorSlices, error) {
	for _, h := range cpuHierarchies {
		root := filepath.Join(h, "gpushare-bench-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(root, 0o755) != nil {
			continue
		}
		s := &processorSlices{root}
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpu"), 0) // It is of cgroup v2 alone.
		if err := errors.Join(os.Mkdir(s.system(), 0o755), os.Mkdir(s.users(), 0o755)); err != nil {
			return nil, errors.Join(err, s.remove())
		}
		_ = os.WriteFile(filepath.Join(s.users(), "cgroup.subtree_control"), []byte("+cpu"), 0)
		for _, weight := range []string{"cpu.shares", "cpu.weight"} {
			if _, err := os.Stat(filepath.Join(s.system(), weight)); err == nil {
				return s, nil
			}
		}
		if err := s.remove(); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("there is no cpu controller of cgroups")
}

func (s *processorSlices) system() string { return filepath.Join(s.root, "system.slice") }

func (s *processorSlices) users() string { return filepath.Join(s.root, "user.slice") }

// toSystem moves a process to the system's half.
func (s *processorSlices) toSystem(pid int) error { return moveTo(s.system(), pid) }

// toUser moves a process to the share of its user.
func (s *processorSlices) toUser(uid, pid int) error {
	if os.Getenv("PROBE") != "" && uid == otherUser {
		d := filepath.Join(s.root, "probe.slice")
		os.Mkdir(d, 0o755)
		os.WriteFile(d+"/cpu.shares", []byte("20480"), 0)
		return moveTo(d, pid)
	}
	dir := filepath.Join(s.users(), fmt.Sprintf("user-%d.slice", uid))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return moveTo(dir, pid)
}

func moveTo(dir string, pid int) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// remove moves this process back and removes the cgroups when the last process has left them.
func (s *processorSlices) remove() error {
	errs := []error{moveTo(filepath.Dir(s.root), os.Getpid())}
	dirs, err := filepath.Glob(filepath.Join(s.users(), "*.slice"))
	for _, dir := range append(dirs, s.users(), s.system(), s.root) {
		errs = append(errs, removeWhenEmpty(dir))
	}
	return errors.Join(append(errs, err)...)
}

// removeWhenEmpty waits up to 5 s for killed processes to leave a cgroup.
func removeWhenEmpty(dir string) (err error) {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return err
}
