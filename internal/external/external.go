// Package external finds other programs on this host that schedule or use GPUs: Slurm, Kubernetes, DCGM, the fabric manager.
// It reads processes and files, and changes and decides nothing.
package external

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Host are the other programs on this host that schedule or use GPUs.
type Host struct {
	Slurmd     int      // its pid; 0 when it does not run
	Gres       Gres     // the GPUs that it is configured to schedule here
	GresFile   string   // the file that configures it
	Kubelet    int      // its pid
	Plugins    []string // sockets of device plugins for NVIDIA
	HostEngine int      // pid of DCGM's host engine
	// FabricManager is its pid: without it the GPUs behind NVSwitches cannot be used.
	FabricManager int
	MIGManager    bool    // nvidia-mig-manager is enabled: it partitions at boot
	Errs          []error // what could not be read
}

// gresFiles are the places of gres.conf: Slurm's own, those of distributions, and those of configless Slurm.
func gresFiles() []string {
	return []string{
		"etc/slurm/gres.conf", "etc/slurm-llnl/gres.conf", "usr/local/etc/slurm/gres.conf", "opt/slurm/etc/gres.conf",
		"run/slurm/conf/gres.conf", "var/spool/slurmd/conf-cache/gres.conf", "var/spool/slurm/d/conf-cache/gres.conf",
	}
}

// Read finds, below root, the other schedulers of GPUs on the host of this name.
func Read(root, host string) Host {
	var o Host
	o.Processes(root)
	node, _, _ := strings.Cut(host, ".")
	for _, file := range gresFiles() {
		g, err := readGres(root, file, node, 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.Errs = append(o.Errs, fmt.Errorf("cannot read which GPUs Slurm schedules: %w", err))
		}
		if g.Any() {
			o.Gres, o.GresFile = g, "/"+file
			break
		}
	}
	for _, pattern := range []string{"var/lib/kubelet/device-plugins/nvidia*.sock", "var/lib/kubelet/plugins/gpu.nvidia.com/*.sock"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		o.Errs = append(o.Errs, err)
		for _, f := range found {
			o.Plugins = append(o.Plugins, strings.TrimPrefix(f, strings.TrimSuffix(root, "/")))
		}
	}
	links, err := filepath.Glob(filepath.Join(root, "etc/systemd/system/*.wants/nvidia-mig-manager.service"))
	o.MIGManager = len(links) > 0
	o.Errs = slices.DeleteFunc(append(o.Errs, err), func(err error) bool { return err == nil })
	return o
}

// Processes finds the daemons by the names that the kernel keeps, of 15 characters.
func (o *Host) Processes(root string) {
	err := boundedread.EachName(filepath.Join(root, "proc"), func(names []string) bool {
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				o.process(root, pid)
			}
		}
		return true
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.Errs = append(o.Errs, fmt.Errorf("cannot list processes: %w", err))
	}
}

func (o *Host) process(root string, pid int) {
	name, err := boundedread.Trusted(filepath.Join(root, "proc", strconv.Itoa(pid), "comm"), boundedread.Value)
	if err != nil {
		return // It ended.
	}
	switch strings.TrimSpace(string(name)) {
	case "slurmd":
		o.Slurmd = pid
	case "kubelet":
		o.Kubelet = pid
	case "nv-hostengine":
		o.HostEngine = pid
	case "nv-fabricmanage":
		o.FabricManager = pid
	}
}

// readGres reads a gres.conf with what it includes.
func readGres(root, file, node string, depth int) (Gres, error) {
	b, err := boundedread.Trusted(filepath.Join(root, file), boundedread.Settings)
	if err != nil {
		return Gres{}, err
	}
	g, includes := parseGres(string(b), node)
	for _, in := range includes {
		if depth > 4 {
			return g, fmt.Errorf("%s: files include each other", file)
		}
		if !filepath.IsAbs(in) {
			in = filepath.Join(filepath.Dir(file), in)
		}
		more, err := readGres(root, in, node, depth+1)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return g, err
		}
		g.Auto = g.Auto || more.Auto
		g.Minors = append(g.Minors, more.Minors...)
		g.Settings = append(g.Settings, more.Settings...)
	}
	slices.Sort(g.Minors)
	g.Minors = slices.Compact(g.Minors)
	return g, nil
}
