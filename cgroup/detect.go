package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
)

// Kind names an adapter, as Info.Adapter does.
type Kind string

// The adapters, strongest first.
const (
	KindSystemd   Kind = "systemd"
	KindCgroupfs  Kind = "cgroupfs"
	KindProcesses Kind = "processes"
)

// DetectOptions change what Detect reads; the zero value is this process on this host.
type DetectOptions struct {
	Root  string // the directory that contains run/systemd/system; "/" when empty
	Mount string // of the cgroup v2 hierarchy; found when empty
	UID   *int   // effective user; this process's when nil
}

// Detect returns the adapter for this host, with the reason as one sentence for people. Only one manager may write cgroups
// (Documentation/admin-guide/cgroup-v2.rst): with systemd that is systemd. Detect writes nothing.
func Detect(opt DetectOptions) (kind Kind, reason string) {
	uid := os.Geteuid()
	if opt.UID != nil {
		uid = *opt.UID
	}
	if uid != 0 {
		return KindProcesses, fmt.Sprintf("not root (uid %d): processes are attributed by their parents, nothing is limited or frozen", uid)
	}
	root := opt.Root
	if root == "" {
		root = "/"
	}
	// The test that sd_booted(3) makes.
	if fi, err := os.Lstat(filepath.Join(root, "run/systemd/system")); err == nil && fi.IsDir() {
		return KindSystemd, "systemd manages the cgroups of this host"
	}
	h := Hierarchy{Mount: opt.Mount}
	if h.Mount == "" {
		var err error
		if h, err = FindHierarchy(); err != nil {
			return KindProcesses, "no cgroup v2 hierarchy is mounted: nothing is limited or frozen"
		}
	}
	if !h.Writable() {
		return KindProcesses, fmt.Sprintf("the cgroup v2 hierarchy at %s is not writable: nothing is limited or frozen", h.Mount)
	}
	return KindCgroupfs, fmt.Sprintf("no systemd: gpushare manages its own subtree of the cgroup v2 hierarchy at %s", h.Mount)
}
