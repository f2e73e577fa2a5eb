package status

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/observe"
)

// checkExternalSchedulers warns of GPUs that gpushare and another scheduler both give to users: each believes that the GPU
// is free, and a user of one gets a GPU that the other has already given away. On a GPU whose owner in the spec is that scheduler,
// gpushare gives leases only as it asks.
func checkExternalSchedulers(o *external.Host, want *state.Desired, node *observe.Node, warn func(name, message, hint string)) {
	for _, err := range o.Errs {
		warn("external schedulers", err.Error(), "")
	}
	managed := func(minors []int, all bool, engine string) (list []int, mig bool) {
		for i := range node.GPUs {
			id := node.GPUs[i].Identity
			if e := want.GPUs[id.UUID]; e != nil && engine != "" && e.Engine() == engine {
				continue
			}
			if want.Manages(id.UUID) && (all || slices.Contains(minors, id.Minor)) {
				list, mig = append(list, id.Index), mig || want.Mode(id.UUID) == api.ModeMIG
			}
		}
		return list, mig
	}
	const or = "; or remove them from "
	if list, _ := managed(o.Gres.Minors, o.Gres.Auto, api.OwnerSlurm); o.Slurmd != 0 && len(list) > 0 {
		warn(
			"external schedulers",
			fmt.Sprintf(
				"slurmd (pid %d) schedules %s as well: %s says %s", o.Slurmd, gpuList(list), o.GresFile,
				strings.Join(o.Gres.Settings, ", "),
			),
			engineHint(list, api.OwnerSlurm)+or+o.GresFile,
		)
	}
	list, _ := managed(nil, true, api.OwnerKubernetes)
	if o.Kubelet != 0 && len(o.Plugins) > 0 && len(list) > 0 {
		warn(
			"external schedulers",
			fmt.Sprintf("the kubelet (pid %d) schedules %s as well: %s", o.Kubelet, gpuList(list), strings.Join(o.Plugins, ", ")),
			engineHint(list, api.OwnerKubernetes)+or+"the device plugin (NVIDIA_VISIBLE_DEVICES of its container)",
		)
	}
	list, mig := managed(nil, true, "")
	if o.MIGManager && len(list) > 0 {
		warn(
			"external schedulers",
			"nvidia-mig-manager.service is enabled: it partitions GPUs at boot and destroys the instances of the tenants on "+gpuList(list),
			"'systemctl disable nvidia-mig-manager.service', or "+externalHint(list, "mig-manager"),
		)
	}
	if o.HostEngine != 0 && mig && !want.QuiescesDCGM() {
		warn(
			"external schedulers",
			fmt.Sprintf("nv-hostengine (pid %d) keeps GPUs open: a change of MIG mode fails while it runs", o.HostEngine),
			"'systemctl stop nvidia-dcgm.service' around such a change; in the spec: node: {quiesce: [nvidia-dcgm.service]}",
		)
	}
}

// checkSlurm says whether Slurm knows the GPUs: one that it does not know is open to every job, whatever the spec says of it.
func checkSlurm(o *external.Host, node *observe.Node, ok func(name, message string), warn func(name, message, hint string)) {
	if o.Slurmd == 0 || len(node.GPUs) == 0 {
		return
	}
	const name, hint = "slurm", "'gpushare slurm gres' prints the lines for gres.conf; 'gpushare slurm check' compares with what slurmd knows"
	var missing []int
	for i := range node.GPUs {
		if id := &node.GPUs[i].Identity; !o.Gres.Auto && !slices.Contains(o.Gres.Minors, id.Minor) {
			missing = append(missing, id.Index)
		}
	}
	file := o.GresFile
	switch {
	case len(missing) == 0:
		ok(name, fmt.Sprintf("slurmd (pid %d) has every GPU in %s; 'gpushare slurm check' compares them", o.Slurmd, file))
	case file == "":
		warn(name, fmt.Sprintf("slurmd (pid %d) runs, and no gres.conf names a GPU: all are open to every job", o.Slurmd), hint)
	default:
		warn(
			name,
			fmt.Sprintf(
				"slurmd (pid %d) runs, and %s does not name %s: with ConstrainDevices too it is open to every job", o.Slurmd, file,
				gpuList(missing),
			),
			hint,
		)
	}
}

// engineHint is what to write in the spec where an engine schedules a GPU.
func engineHint(list []int, engine string) string {
	each := "the entry"
	if len(list) > 1 {
		each = "the entries"
	}
	return fmt.Sprintf(
		"if %[1]s places what runs there, write 'owner: %[1]s' in %[2]s of %[3]s ('share_with: [local]' next to it if gpushare run may too); "+
			"if it has them alone, %[4]s",
		engine,
		each,
		gpuList(list),
		externalHint(list, engine),
	)
}

// externalHint returns the entry for the spec.
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
