package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/slurm"
)

// others is who else on this host shares out GPUs, or touches them.
type others struct {
	slurmd     int        // its pid; 0 when it does not run
	gres       slurm.GPUs // what it was told to give out here
	gresFile   string     // where that is said
	kubelet    int        // its pid
	plugins    []string   // sockets of device plugins for NVIDIA
	hostengine int        // of DCGM
	// fabricManager is its pid: without it the GPUs behind NVSwitches cannot be used.
	fabricManager int
	migManager    bool    // nvidia-mig-manager is enabled: it partitions at boot
	errs          []error // what could not be read
}

// gresFiles are where Slurm keeps its gres.conf, by itself, by distribution and without configuration of its own.
func gresFiles() []string {
	return []string{
		"etc/slurm/gres.conf", "etc/slurm-llnl/gres.conf", "usr/local/etc/slurm/gres.conf", "opt/slurm/etc/gres.conf",
		"run/slurm/conf/gres.conf", "var/spool/slurmd/conf-cache/gres.conf", "var/spool/slurm/d/conf-cache/gres.conf",
	}
}

// readOthers looks, below root, who else shares out GPUs on the host of this name.
func readOthers(root, host string) others {
	var o others
	o.processes(root)
	node, _, _ := strings.Cut(host, ".")
	for _, file := range gresFiles() {
		g, err := readGres(root, file, node, 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.errs = append(o.errs, fmt.Errorf("cannot read what Slurm gives out: %w", err))
		}
		if g.Any() {
			o.gres, o.gresFile = g, "/"+file
			break
		}
	}
	for _, pattern := range []string{"var/lib/kubelet/device-plugins/nvidia*.sock", "var/lib/kubelet/plugins/gpu.nvidia.com/*.sock"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		o.errs = append(o.errs, err)
		for _, f := range found {
			o.plugins = append(o.plugins, strings.TrimPrefix(f, strings.TrimSuffix(root, "/")))
		}
	}
	wanted, err := filepath.Glob(filepath.Join(root, "etc/systemd/system/*.wants/nvidia-mig-manager.service"))
	o.migManager = len(wanted) > 0
	o.errs = slices.DeleteFunc(append(o.errs, err), func(err error) bool { return err == nil })
	return o
}

// processes finds the daemons by the names that the kernel keeps, of 15 characters.
func (o *others) processes(root string) {
	entries, err := os.ReadDir(filepath.Join(root, "proc"))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			o.errs = append(o.errs, fmt.Errorf("cannot list processes: %w", err))
		}
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err := os.ReadFile(filepath.Join(root, "proc", e.Name(), "comm"))
		if err != nil {
			continue // It ended.
		}
		switch strings.TrimSpace(string(name)) {
		case "slurmd":
			o.slurmd = pid
		case "kubelet":
			o.kubelet = pid
		case "nv-hostengine":
			o.hostengine = pid
		case "nv-fabricmanage":
			o.fabricManager = pid
		}
	}
}

// readGres reads a gres.conf with what it includes.
func readGres(root, file, node string, depth int) (slurm.GPUs, error) {
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return slurm.GPUs{}, err
	}
	g, includes := slurm.Parse(string(b), node)
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
		g.Words = append(g.Words, more.Words...)
	}
	slices.Sort(g.Minors)
	g.Minors = slices.Compact(g.Minors)
	return g, nil
}

// checkOthers warns of GPUs that two share out: each believes that they are free, and tenants of the one get what the
// other gave away.
func checkOthers(o *others, want *desired, node *observe.Node, warn func(name, message, hint string)) {
	for _, err := range o.errs {
		warn("owners", err.Error(), "")
	}
	both := func(minors []int, all bool) (list []int, mig bool) {
		for i := range node.GPUs {
			id := node.GPUs[i].Identity
			if want.manages(id.UUID) && (all || slices.Contains(minors, id.Minor)) {
				list, mig = append(list, id.Index), mig || want.mode(id.UUID) == api.ModeMIG
			}
		}
		return list, mig
	}
	const or = "; or take them away from "
	if list, _ := both(o.gres.Minors, o.gres.Auto); o.slurmd != 0 && len(list) > 0 {
		warn("owners", fmt.Sprintf("slurmd (pid %d) gives out %s as well: %s says %s", o.slurmd, gpuList(list), o.gresFile, strings.Join(o.gres.Words, ", ")),
			externalHint(list, "slurm")+or+o.gresFile)
	}
	list, mig := both(nil, true)
	if o.kubelet != 0 && len(o.plugins) > 0 && len(list) > 0 {
		warn("owners", fmt.Sprintf("the kubelet (pid %d) gives out %s as well: %s", o.kubelet, gpuList(list), strings.Join(o.plugins, ", ")),
			externalHint(list, "kubernetes")+or+"the device plugin (NVIDIA_VISIBLE_DEVICES of its container)")
	}
	if o.migManager && len(list) > 0 {
		warn("owners", "nvidia-mig-manager.service is enabled: it partitions GPUs at boot, and takes "+gpuList(list)+" from their tenants",
			"'systemctl disable nvidia-mig-manager.service', or "+externalHint(list, "mig-manager"))
	}
	if o.hostengine != 0 && mig && !want.quiescesDCGM() {
		warn("owners", fmt.Sprintf("nv-hostengine (pid %d) keeps GPUs open: a change of MIG mode fails while it runs", o.hostengine),
			"'systemctl stop nvidia-dcgm.service' around such a change; in the spec: node: {quiesce: [nvidia-dcgm.service]}")
	}
}

// quiescesDCGM tells whether the spec has DCGM stopped around MIG changes, by whatever name its unit has here.
func (d *desired) quiescesDCGM() bool {
	return d.spec != nil && slices.ContainsFunc(d.spec.Node.Quiesce, func(unit string) bool {
		return strings.Contains(unit, "dcgm") || strings.Contains(unit, "hostengine")
	})
}

// externalHint is what to write in the spec.
func externalHint(list []int, owner string) string {
	var words []string
	for _, n := range list {
		words = append(words, strconv.Itoa(n))
	}
	return fmt.Sprintf("write in the spec: gpus: [{select: {index: [%s]}, mode: external, owner: %s}]", strings.Join(words, ", "), owner)
}

func gpuList(list []int) string {
	if len(list) == 1 {
		return fmt.Sprintf("GPU %d", list[0])
	}
	var words []string
	for _, n := range list {
		words = append(words, strconv.Itoa(n))
	}
	return "GPUs " + strings.Join(words, ", ")
}
