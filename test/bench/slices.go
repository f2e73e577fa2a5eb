package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// errNoController means that no cgroup of this host shares the processor.
var errNoController = errors.New("no cpu controller of cgroups, of v1 or v2, can be used")

// The cpu controller, where systemd mounts it without and with cgroup v1.
var cpuHierarchies = []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"}

// processorSlices are cgroups that share the processor as systemd does: the daemon has the part of its unit, all users together have
// another, and each user as much as the next. A host of the product has them.
type processorSlices struct{ root string }

// newProcessorSlices returns errNoController where there is none.
func newProcessorSlices() (*processorSlices, error) {
	weight, err := weightOfDaemon()
	if err != nil {
		return nil, err
	}
	for _, h := range cpuHierarchies {
		root := filepath.Join(h, "gpushare-bench-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(root, 0o755) != nil {
			continue
		}
		s := &processorSlices{root}
		if err := s.create(weight); err == nil {
			return s, nil
		}
		if err := s.remove(); err != nil {
			return nil, err
		}
	}
	return nil, errNoController
}

// unitOfWeight is the unit that the product installs; this program runs in the root of the repository.
const unitOfWeight = "packaging/systemd/gpushared.slice"

// weightOfDaemon reads CPUWeight of the daemon's slice. Other slices have 100.
func weightOfDaemon() (int, error) {
	b, err := os.ReadFile(unitOfWeight)
	if err != nil {
		return 0, fmt.Errorf("cannot read the weight of the daemon: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "CPUWeight="); ok {
			return strconv.Atoi(value)
		}
	}
	return 0, fmt.Errorf("%s has no CPUWeight", unitOfWeight)
}

// create fails if the hierarchy has no cpu controller.
func (s *processorSlices) create(weight int) error {
	controllers := func(dir string) { // Those of cgroup v1 have no such file.
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu"), 0)
	}
	controllers(s.root)
	for _, dir := range []string{s.daemon(), s.prompt(), s.users()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	controllers(s.users())
	return errors.Join(setWeight(s.daemon(), weight), setWeight(s.prompt(), weight))
}

// setWeight sets a weight of cgroup v2, or the shares of cgroup v1 that are the same part: there 1024 is what 100 is here.
func setWeight(dir string, weight int) error {
	v2 := filepath.Join(dir, "cpu.weight")
	if _, err := os.Stat(v2); err == nil {
		return os.WriteFile(v2, []byte(strconv.Itoa(weight)), 0)
	}
	v1 := filepath.Join(dir, "cpu.shares")
	if _, err := os.Stat(v1); err != nil {
		return err
	}
	return os.WriteFile(v1, []byte(strconv.Itoa(weight*1024/100)), 0)
}

func (s *processorSlices) daemon() string { return filepath.Join(s.root, "gpushared.slice") }

func (s *processorSlices) prompt() string { return filepath.Join(s.root, "prompt.slice") }

func (s *processorSlices) users() string { return filepath.Join(s.root, "user.slice") }

// toDaemon moves a process to the daemon's part.
func (s *processorSlices) toDaemon(pid int) error { return moveTo(s.daemon(), pid) }

// toPrompt moves a process to a part as large as the daemon's, so that it hardly waits for the processor itself.
func (s *processorSlices) toPrompt(pid int) error { return moveTo(s.prompt(), pid) }

// toUser moves a process to the part of its user.
func (s *processorSlices) toUser(uid, pid int) error {
	dir := filepath.Join(s.users(), fmt.Sprintf("user-%d.slice", uid))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return moveTo(dir, pid)
}

func moveTo(dir string, pid int) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// remove moves this process back and removes the cgroups when the last process has left them, within 5 s.
func (s *processorSlices) remove() error {
	errs := []error{moveTo(filepath.Dir(s.root), os.Getpid())}
	dirs, err := filepath.Glob(filepath.Join(s.users(), "*.slice"))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // That of the measurement may have ended.
	defer cancel()
	for _, dir := range append(dirs, s.users(), s.prompt(), s.daemon(), s.root) {
		// The cpu controller of cgroup v1 has no event of an empty cgroup.
		errs = append(errs, harness.Await(ctx, 10*time.Millisecond, dir+" is not removed", func() (bool, error) {
			err := os.Remove(dir)
			if errors.Is(err, os.ErrNotExist) {
				err = nil
			}
			return err == nil, err
		}))
	}
	return errors.Join(append(errs, err)...)
}
