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

// DetectOptions change what Detect looks at; the zero value is this process on this host.
type DetectOptions struct {
	Root  string // below which run/systemd/system is looked for; "/" when empty
	Mount string // of the cgroup v2 hierarchy; found when empty
	UID   *int   // effective user; this process's when nil
}

// Detect tells which adapter fits here, and why in one sentence for people. Whoever manages cgroups on this host is the
// only one to write them: with systemd that is systemd. It reads only.
func Detect(opt DetectOptions) (kind Kind, reason string) {
	uid := os.Geteuid()
	if opt.UID != nil {
		uid = *opt.UID
	}
	if uid != 0 {
		return KindProcesses, fmt.Sprintf("not root (uid %d): processes are followed by their parents, nothing is limited or frozen", uid)
	}
	root := opt.Root
	if root == "" {
		root = "/"
	}
	// The test that sd_booted(3) makes.
	if fi, err := os.Lstat(filepath.Join(root, "run/systemd/system")); err == nil && fi.IsDir() {
		return KindSystemd, "systemd runs this host and makes its cgroups"
	}
	h := Hierarchy{Mount: opt.Mount}
	if h.Mount == "" {
		var err error
		if h, err = FindHierarchy(); err != nil {
			return KindProcesses, "no cgroup v2 hierarchy is mounted: nothing is limited or frozen"
		}
	}
	if !h.Writable() {
		return KindProcesses, fmt.Sprintf("the cgroup v2 hierarchy at %s may not be written: nothing is limited or frozen", h.Mount)
	}
	return KindCgroupfs, fmt.Sprintf("no systemd: a subtree of our own on the cgroup v2 hierarchy at %s", h.Mount)
}
