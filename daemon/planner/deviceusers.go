package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// Decision is what a change does with a process that blocks it.
type Decision int

const (
	Stop    Decision = iota // --force stops it: SIGTERM, then SIGKILL
	Quiesce                 // the spec has its unit stopped for the change and started again
	Keep                    // it is not stopped, even with --force: the change is refused
	Own                     // it belongs to gpushare: the step that changes the GPU ends it
	Ended                   // it has ended since it was listed: it is in the way of nothing
)

// DeviceUser is a process that uses a device.
type DeviceUser struct {
	PID      int
	Start    uint64 // 0: it was not read
	Name     string
	Unit     string // the systemd unit of the process
	Tenant   string
	Lease    string
	Age      time.Duration
	Decision Decision
	Reason   string // the reason for Keep
}

// String describes the process: "pid 812 (dcgm-exporter, dcgm-exporter.service, for 3h)".
func (h *DeviceUser) String() string { return h.subject().String() }

// subject is the process with its description.
func (h *DeviceUser) subject() step.Subject {
	words := []string{h.Name}
	if h.Name == "" {
		words[0] = "it has ended"
	}
	if h.Tenant != "" {
		words = append(words, "tenant "+h.Tenant)
	}
	if h.Lease != "" {
		words = append(words, "lease "+h.Lease)
	}
	if h.Unit != "" {
		words = append(words, h.Unit)
	}
	if h.Age > 0 {
		words = append(words, "for "+ageText(h.Age))
	}
	s := strings.Join(words, ", ")
	if h.Reason != "" {
		s += "; " + h.Reason
	}
	return step.ProcessOf(h.PID, s)
}

// ageText is a duration in its largest suitable unit.
func ageText(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// BlockingProcesses are the processes that use an instance, or with nil the GPU: those that the driver lists, and those that
// only have its device nodes open. A process that has the node of a whole GPU open blocks only a reset of that GPU.
func BlockingProcesses(g *observe.GPU, in *gpu.Instance, use Usage) []DeviceUser {
	var pids []int
	for i := range g.Processes {
		p := &g.Processes[i]
		if in != nil && (p.GI == nil || *p.GI != in.ID) {
			continue
		}
		if in == nil && p.Kind == gpu.MPSProcess {
			continue // It is counted with its server.
		}
		pids = append(pids, p.PID)
	}
	if in != nil || g.MIG.Resetless == nil || !*g.MIG.Resetless {
		pids = append(pids, use.OpenDevices.of(g.Identity.UUID, in)...)
	}
	slices.Sort(pids)
	var out []DeviceUser
	for _, pid := range slices.Compact(pids) {
		if h := use.Process(g.ControlDaemons(), pid); h.Decision != Own && h.Decision != Ended {
			out = append(out, h)
		}
	}
	return out
}

// inUseBy names the users of an instance, or with nil of the GPU: leases first, then processes of no lease. Processes whose
// unit is stopped for the change do not count. kept are the processes that are not stopped even with --force.
func inUseBy(g *observe.GPU, in *gpu.Instance, use Usage) (users []step.Subject, kept []step.Subject) {
	var leases []string
	if in != nil {
		leases = use.Instance(g.Identity.UUID, in.Placement)
	} else {
		leases = use.GPU(g.Identity.UUID)
	}
	for _, id := range leases {
		users = append(users, step.LeaseOf(id, ""))
	}
	for _, h := range BlockingProcesses(g, in, use) {
		if h.Decision == Quiesce || h.Lease != "" && slices.Contains(leases, h.Lease) {
			continue // It ends with its unit, or with its lease.
		}
		users = append(users, h.subject())
		if h.Decision == Keep && !use.IgnoreKept {
			kept = append(kept, h.subject())
		}
	}
	return users, kept
}

// deviceUsers lists the users of the instances of a GPU, or of the GPU when it has none. It is the machine-readable part of
// a refusal.
func deviceUsers(g *observe.GPU, use Usage) []api.DeviceUser {
	var out []api.DeviceUser
	add := func(in *gpu.Instance, name string, leases []string) {
		id, named := string(g.Identity.UUID), map[string]bool{}
		for _, h := range BlockingProcesses(g, in, use) {
			if h.Decision == Quiesce {
				continue
			}
			named[h.Lease] = true
			out = append(out, api.DeviceUser{
				GPU:            id,
				Instance:       name,
				PID:            h.PID,
				Command:        h.Name,
				Unit:           h.Unit,
				Tenant:         h.Tenant,
				Lease:          h.Lease,
				RunningSeconds: h.Age.Seconds(),
				Kept:           h.Decision == Keep,
			})
		}
		for _, l := range leases {
			if !named[l] {
				out = append(out, api.DeviceUser{GPU: id, Instance: name, Lease: l})
			}
		}
	}
	for i := range g.Instances {
		in := &g.Instances[i]
		add(in, fmt.Sprintf("%s at %d", g.Profiles.GIName(in.ProfileID), in.Placement.Start), use.Instance(g.Identity.UUID, in.Placement))
	}
	if len(g.Instances) == 0 {
		add(nil, "", use.GPU(g.Identity.UUID))
	}
	return out
}
