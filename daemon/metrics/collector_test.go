package metrics

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/test/golden"
)

func ptr[T any](v T) *T { return &v }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const gib = 1 << 30

// labNode has one example of each kind of state.
func labNode() *Snapshot {
	gpu := func(index int, mode string) api.GPUStatus {
		return api.GPUStatus{
			Index:  index,
			UUID:   fmt.Sprintf("GPU-%d", index),
			PCI:    fmt.Sprintf("0000:%02x:00.0", index),
			Model:  "NVIDIA A100-SXM4-40GB",
			Mode:   mode,
			State:  "ok",
			Memory: api.GPUMemory{Total: 40 * gib, Used: 3 * gib, Free: 37 * gib},
			ReadAt: &noon,
		}
	}
	split, served, sliced, lost, fresh := gpu(0, "mig"), gpu(1, "mps"), gpu(2, "timeslice"), gpu(3, "exclusive"), gpu(4, "external")
	split.MIG = &api.MIGStatus{Enabled: true, Instances: []api.InstanceStatus{
		{
			ID:        2,
			Profile:   "3g.20gb",
			Placement: api.MIGPlacement{Start: 4, Size: 4},
			UUIDs:     []string{"MIG-4"},
			Lease:     "vision-3kq6",
			Memory:    api.GPUMemory{Total: 20 * gib, Used: gib},
			Use: &api.InstanceUse{
				Busy:            ptr(62.5),
				Multiprocessors: ptr(25.0),
				MemoryBandwidth: ptr(12.5),
				IntervalSeconds: 10,
				ReadAt:          noon,
			},
		},
		{ID: 7, Profile: "1g.5gb", Placement: api.MIGPlacement{Start: 2, Size: 1}, UUIDs: []string{"MIG-2"}, Foreign: true},
		{ID: 8, Profile: "1g.5gb", Placement: api.MIGPlacement{Start: 3, Size: 1}},
		{ID: 9, Profile: "2g.10gb", UUIDs: []string{"MIG-0"}, MPS: &api.MPSStatus{State: "failed"}},
	}}
	served.Utilization, served.MPS = ptr(100), &api.MPSStatus{
		State:      "running",
		Clients:    1,
		MaxClients: 48,
		Restarts:   2,
		Drained:    &api.MPSDrain{},
	}
	served.Processes = []api.ProcessStatus{
		{PID: 1, Kind: "mps-server"},
		{PID: 2, Kind: "mps", Lease: "speech-1"},
		{PID: 3, Kind: "compute"},
	}
	served.Memory, served.Unattributed = api.GPUMemory{Total: 40 * gib, Used: 3 * gib, Free: 36 * gib, Reserved: gib}, ptr(uint64(0))
	sliced.Utilization, sliced.TimeSlices = ptr(7), &api.TimeSlices{Enforced: true, Contended: true, IdleWhileWaiting: ptr(1.5)}
	sliced.Granted = []api.GrantedMemory{{Tenant: "vision", Grant: "dev", Bytes: 30 * gib}}
	lost.State, lost.Utilization = "lost", ptr(50)
	lost.Closures = []api.Closure{
		{Kind: "unanswered", Reason: "GPU is lost"},
		{Kind: "cordoned", Reason: "root closed it to new leases"},
		{Kind: "held-back", Tenant: "vision"},
	}
	readings := &api.HealthReadings{
		ReadAt:            noon,
		CorrectedErrors:   ptr(uint64(5)),
		UncorrectedErrors: ptr(uint64(1)),
		PCIeReplays:       ptr(uint64(2)),
		Rows: &api.RemappedRows{
			Corrected:   1,
			Uncorrected: 2,
			Pending:     true,
		},
		NVLinkErrors: &api.NVLinkCounters{CRC: 3, Replay: 4, Recovery: 5},
	}
	served.Health, sliced.Health = &api.GPUHealth{
		State:    api.HealthWarning,
		Readings: readings,
	}, &api.GPUHealth{
		State:    api.HealthOK,
		Readings: &api.HealthReadings{ReadAt: noon},
	}
	served.Sensors = &api.Sensors{
		ReadAt:            noon,
		Temperature:       ptr(61),
		MemoryTemperature: ptr(70),
		PowerWatts:        ptr(287.5),
		PowerLimitWatts:   ptr(300.0),
		Throttle:          []string{"power-cap", "thermal"},
		Clocks:            &api.Clocks{SM: 1275, MaxSM: 1410, Memory: 1593},
		FanPercent:        ptr(45),
	}
	sliced.Sensors = &api.Sensors{ReadAt: noon, PowerLimitWatts: ptr(400.0)}
	lost.Sensors = served.Sensors
	lost.Health = &api.GPUHealth{State: api.HealthClosed, Since: &noon, Readings: readings}
	fresh.ReadAt, fresh.Memory, fresh.Owner = nil, api.GPUMemory{}, "slurm"
	later := noon.Add(time.Minute)
	lease := func(id, grant, state string, on api.GPUStatus) api.Lease {
		return api.Lease{
			ID:      id,
			Tenant:  "vision",
			Grant:   grant,
			Kind:    on.Mode,
			State:   state,
			Origin:  "run",
			User:    "alice",
			GPUs:    []string{on.UUID},
			Devices: []string{on.UUID},
			Created: noon,
		}
	}
	inMIG, first, second, waits, waitsToo := lease("vision-3kq6", "train", "running", split), lease(
		"vision-a", "dev", "running", sliced,
	), lease("vision-b", "dev", "running", sliced), lease(
		"vision-c", "dev", "queued", sliced,
	), lease("vision-d", "dev", "queued", sliced)
	inMIG.Devices, inMIG.GPUMemory = []string{"MIG-4"}, &api.LeaseMemory{Limit: 20 * gib, Used: gib, Backend: "mig", Hard: true}
	inMIG.Isolation.NotEnforced = []string{"memory.high: this kernel has no memory controller"}
	first.Share = &api.LeaseShare{Entitled: 20, Due: ptr(50.0), Busy: ptr(40.0), Occupancy: ptr(48.0), Enforced: true, State: api.ShareMet}
	second.Share, second.User, second.FrozenFor = &api.LeaseShare{
		Entitled:  20,
		Busy:      ptr(10.0),
		Occupancy: ptr(12.0),
		State:     api.ShareUnmet,
	}, "bob\xff", []string{
		"the tenant is frozen",
	}
	first.GPUMemory, second.GPUMemory = &api.LeaseMemory{
		Limit:   30 * gib,
		Used:    gib,
		Backend: "reactive",
	}, &api.LeaseMemory{
		Limit:   30 * gib,
		Backend: "reactive",
		Unknown: true,
	}
	for _, l := range []*api.Lease{&waits, &waitsToo} {
		l.GPUs, l.Devices = nil, nil
	}
	waitsToo.Created = later
	return &Snapshot{
		Version: "1.2.3",
		Status: &api.Status{
			At: noon,
			Node: api.NodeStatus{
				Generation: 7,
				Enforce:    "on",
				Driver:     "580.95.05",
				Adapter:    "systemd",
				Operation:  "op-3",
				Conditions: []api.Condition{
					{Kind: "held", GPU: "GPU-3"},
					{Kind: "unknown-member", Message: "alice"},
					{Kind: "unknown-member", Message: "bob"},
					{Kind: "not-enforced", Tenant: "vision", Acknowledged: &api.Acknowledgement{}},
				},
			},
			GPUs: []api.GPUStatus{split, served, sliced, lost, fresh},
			Tenants: []api.TenantStatus{
				{
					Name:     "vision",
					Priority: "high",
					Frozen:   &api.TenantFreeze{},
					Limits:   []api.LimitStatus{{Name: "cpu.quota", InForce: "800%"}, {Name: "memory.high", Reason: "no controller"}},
					Grants: []api.GrantStatus{
						{Name: "train", Kind: "mig", Leases: 1, MaxLeases: 1}, {Name: "dev", Kind: "timeslice", Leases: 2, Queued: 2},
					},
				},
				{Name: "speech", Priority: "normal"},
			},
			Leases: []api.Lease{inMIG, first, second, waits, waitsToo},
			Users: []api.UserStatus{
				{User: "alice", Leases: 2, MaxLeases: 4, GPUMemory: api.UserMemory{Granted: 50 * gib, Limit: 60 * gib}},
				{User: "bob", Leases: 1},
			},
		},
		XIDs: []report.XIDCount{{GPU: "GPU-1", XID: 79, Count: 2, Last: noon}},
		Activity: &Activity{
			Converges:    1,
			Drifts:       2,
			Steps:        3,
			Freezes:      4,
			Messages:     5,
			Writes:       6,
			Timeouts:     7,
			WorkerStarts: 8,
			Reading:      1500 * time.Millisecond,
		},
		Uses: []api.IdleUse{
			{
				GPU:         "GPU-2",
				Lease:       "vision-1",
				Tenant:      "vision",
				User:        "alice",
				Held:        30 * gib,
				Used:        ptr(uint64(8 * gib)),
				State:       api.UseIdle,
				IdleSeconds: ptr(7200.0),
			},
			{
				GPU:         "GPU-2",
				Lease:       "vision-2",
				Tenant:      "vision",
				User:        "alice",
				Held:        4 * gib,
				State:       api.UseIdle,
				IdleSeconds: ptr(599.0),
			},
			{GPU: "GPU-0", Lease: "vision-3kq6", Tenant: "vision", User: "alice", Held: 20 * gib, State: api.UseUnknown},
			{GPU: "GPU-4", User: "bob", Held: 5 * gib, Used: ptr(uint64(5 * gib)), State: api.UseBusy, IdleSeconds: ptr(0.0)},
			{GPU: "GPU-4", User: "carol", State: api.UseUnknown},
		},
		Usage: []Usage{
			{GPU: "GPU-2", Tenant: "vision", User: "alice", Busy: ptr(90 * time.Second), Occupancy: ptr(2 * time.Minute)},
			{GPU: "GPU-0", Tenant: "vision", User: "alice"},
		},
	}
}

// goVersion differs between hosts.
func withoutGoVersion(b []byte) string {
	out := []string{}
	for line := range strings.Lines(string(b)) {
		if i := strings.Index(line, `goversion="`); i >= 0 {
			end := strings.Index(line[i+11:], `"`)
			line = line[:i+11] + line[i+11+end:]
		}
		out = append(out, line)
	}
	return strings.Join(out, "")
}

// -update writes the file: then read the difference.
func TestMetricsOfANode(t *testing.T) {
	b, err := labNode().text()
	if err != nil {
		t.Fatal(err)
	}
	got := withoutGoVersion(b)
	golden.File(t, "testdata/node.prom", got)
	for _, m := range Catalog() {
		if !strings.Contains(got, "# TYPE "+m.Name+" ") {
			t.Errorf("the node has no example of %s", m.Name)
		}
	}
}

// The names, units and help texts follow the conventions of Prometheus.
func TestNamesFollowTheConventions(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(labNode())
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// What is not known is absent, and not zero.
func TestUnknownValuesAreAbsent(t *testing.T) {
	b, err := labNode().text()
	if err != nil {
		t.Fatal(err)
	}
	for _, absent := range []string{
		`gpu_utilization_ratio{gpu="0"`, `gpu_utilization_ratio{gpu="3"`, `gpu_memory_used_bytes{gpu="3"`, `gpu_memory_used_bytes{gpu="4"`, `gpu_memory_total_bytes{gpu="4"`,
		`gpu_memory_reserved_bytes{gpu="0"`, `gpu_memory_unattributed_bytes{gpu="0"`, `mig_instance_memory_used_bytes{device="MIG-2"`, `mps_clients{device="MIG-0"`,
		`mig_instance_utilization_ratio{device="MIG-2"`,
		`grant_gpu_memory_used_bytes{grant="dev"`, `grant_leases_max{grant="dev"`, `user_leases_max{user="bob"`, `busy_seconds_total{gpu="0"`, `grant_queue_oldest_timestamp_seconds{grant="train"`,
	} {
		if strings.Contains(string(b), "\ngpushare_"+absent) {
			t.Errorf("%s is there", absent)
		}
	}
}

// Each lease begins new series, so only one metric has its id.
func TestLeaseIDsAreOnOneMetric(t *testing.T) {
	b, err := labNode().text()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if (strings.Contains(line, "vision-3kq6") || strings.Contains(line, "vision-a")) &&
			!strings.HasPrefix(line, "gpushare_lease_info{") {
			t.Errorf("a lease id is in %s", line)
		}
	}
	for _, m := range Catalog() {
		if slices.Contains(m.Labels, "lease") != (m.Name == "gpushare_lease_info") {
			t.Errorf("%s has the labels %q", m.Name, m.Labels)
		}
	}
}

// Two things with the same labels must not make the answer invalid.
func TestTheSameThingTwice(t *testing.T) {
	s := labNode()
	s.Status.GPUs = append(s.Status.GPUs, s.Status.GPUs...)
	s.Status.Tenants = append(s.Status.Tenants, s.Status.Tenants...)
	s.Status.Users = append(s.Status.Users, s.Status.Users...)
	s.Status.Leases = append(s.Status.Leases, s.Status.Leases...)
	if _, err := s.text(); err != nil {
		t.Error(err)
	}
	if _, err := (&Snapshot{Status: &api.Status{}}).text(); err != nil {
		t.Errorf("of an empty node: %v", err)
	}
}

// docs/monitoring.md lists every metric. -update writes the list.
func TestEveryMetricIsDocumented(t *testing.T) {
	const file, begin, end = "../../docs/monitoring.md", "<!-- metrics -->\n", "<!-- end of metrics -->\n"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s lacks the line %q or %q", file, begin, end)
	}
	var list strings.Builder
	list.WriteString("| metric | type | labels | value |\n|---|---|---|---|\n")
	for _, m := range Catalog() {
		labels := ""
		for i, l := range m.Labels {
			if i > 0 {
				labels += ", "
			}
			labels += "`" + l + "`"
		}
		kind := "gauge"
		if m.Type == prometheus.CounterValue {
			kind = "counter"
		}
		fmt.Fprintf(&list, "| `%s` | %s | %s | %s |\n", m.Name, kind, labels, m.Help)
	}
	golden.File(t, file, before+begin+list.String()+end+after)
}

// Each compute instance of an instance that is split is a device of its own, with its own lease; they share the memory.
func TestMetricsOfComputeInstances(t *testing.T) {
	s := labNode()
	in := &s.Status.GPUs[0].MIG.Instances[0]
	in.UUIDs, in.Lease, in.Leases = []string{"MIG-4", "MIG-5"}, "vision-3kq6", []string{"vision-3kq6"}
	in.Compute = []api.ComputeStatus{{UUID: "MIG-4", Profile: "1c.3g.20gb"}, {UUID: "MIG-5", Profile: "2c.3g.20gb", Lease: "vision-3kq6"}}
	text := exposed(t, s)
	for _, want := range []string{
		`gpushare_mig_instance_info{compute="1c.3g.20gb",device="MIG-4",foreign="false",gpu="0",instance="2",profile="3g.20gb",start="4",uuid="GPU-0"} 1`,
		`gpushare_mig_instance_info{compute="2c.3g.20gb",device="MIG-5",foreign="false",gpu="0",instance="2",profile="3g.20gb",start="4",uuid="GPU-0"} 1`,
		`gpushare_mig_instance_info{compute="",device="MIG-2",foreign="true",gpu="0",instance="7",profile="1g.5gb",start="2",uuid="GPU-0"} 1`,
		`gpushare_mig_instance_leased{device="MIG-4",gpu="0",uuid="GPU-0"} 0`,
		`gpushare_mig_instance_leased{device="MIG-5",gpu="0",uuid="GPU-0"} 1`,
		`gpushare_mig_instance_memory_total_bytes{device="MIG-5",gpu="0",uuid="GPU-0"} 2.147483648e+10`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
}

// A lost GPU whose index another GPU has now has no index in any label, and no file for dcgm-exporter.
func TestMetricsOfAGPUWithoutAnIndex(t *testing.T) {
	s := labNode()
	for i := range s.Status.GPUs {
		s.Status.GPUs[i].Index = -1
	}
	text := exposed(t, s)
	if strings.Contains(text, `"-1"`) || !strings.Contains(text, `gpushare_gpu_state{gpu="",state="lost",uuid="GPU-3"} 1`) {
		t.Errorf("the metrics are\n%s", text)
	}
	if got := jobsOf(s.Status); len(got) != 0 {
		t.Errorf("the files are %v", got)
	}
}

func exposed(t *testing.T, s *Snapshot) string {
	t.Helper()
	b, err := s.text()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
