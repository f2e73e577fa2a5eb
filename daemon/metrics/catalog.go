package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metric is one metric of the catalog.
type Metric struct {
	Name   string
	Type   prometheus.ValueType
	Labels []string
	Help   string
	desc   *prometheus.Desc
}

// catalog has all metrics, in the order of docs/monitoring.md. It is complete after the package variables are set.
var catalog []*Metric

// Catalog lists all metrics.
func Catalog() []*Metric { return catalog }

func gauge(name, help string, labels ...string) *Metric {
	return define(name, prometheus.GaugeValue, help, labels)
}

func counter(name, help string, labels ...string) *Metric {
	return define(name, prometheus.CounterValue, help, labels)
}

func define(name string, kind prometheus.ValueType, help string, labels []string) *Metric {
	m := &Metric{Name: "gpushare_" + name, Type: kind, Labels: labels, Help: help}
	m.desc = prometheus.NewDesc(m.Name, help, labels, nil)
	catalog = append(catalog, m)
	return m
}

// Labels of a GPU, of a grant, and of a grant on a device of a GPU.
var (
	ofGPU    = []string{"gpu", "uuid"}
	ofGrant  = []string{"tenant", "grant"}
	ofShare  = []string{"gpu", "uuid", "device", "tenant", "grant"}
	ofDevice = []string{"gpu", "uuid", "device"}
)

// The node.
var (
	buildInfo  = gauge("build_info", "The version of gpushared. The value is 1.", "version", "goversion")
	nodeInfo   = gauge("node_info", "The driver and the adapter of cgroups of the node. The value is 1.", "driver", "adapter", "enforce")
	enforcing  = gauge("node_enforcing", "1 if the spec is enforced, 0 if it is only observed.")
	generation = gauge("spec_generation", "The generation of the spec in force, 0 without a spec.")
	operation  = gauge("operation_running", "1 while a change of the node runs.")
	condition  = gauge(
		"condition", "How many conditions of a kind there are of a GPU (its UUID), a tenant, or the node.", "reason", "subject",
		"acknowledged",
	)
)

// GPUs.
var (
	gpuInfo        = gauge("gpu_info", "A GPU. The value is 1.", "gpu", "uuid", "pci", "model", "mode", "owner")
	gpuState       = gauge("gpu_state", "1 for the state that the GPU is in, 0 for the others.", "gpu", "uuid", "state")
	gpuClosed      = gauge("gpu_closed", "1 for each reason why the GPU as a whole takes no new lease.", "gpu", "uuid", "reason")
	gpuRead        = gauge("gpu_read_timestamp_seconds", "When memory and processes of the GPU were last read.", ofGPU...)
	gpuUtilization = gauge(
		"gpu_utilization_ratio",
		"The part of the last sample period in which a kernel ran on the GPU, 0 to 1.",
		ofGPU...)
	gpuMemoryTotal   = gauge("gpu_memory_total_bytes", "The memory of the GPU.", ofGPU...)
	gpuMemoryUsed    = gauge("gpu_memory_used_bytes", "The memory that is in use on the GPU.", ofGPU...)
	gpuMemoryFree    = gauge("gpu_memory_free_bytes", "The memory that is free on the GPU.", ofGPU...)
	gpuMemoryReserve = gauge(
		"gpu_memory_reserved_bytes",
		"The memory that the driver reserves. Absent where it counts that as used.",
		ofGPU...)
	gpuMemoryNoOwner = gauge("gpu_memory_unattributed_bytes", "The used memory that no listed process accounts for.", ofGPU...)
	gpuMemoryGranted = gauge(
		"gpu_memory_granted_bytes", "The memory of the GPU that live leases and reserved grants take.", "gpu", "uuid", "tenant",
		"grant",
	)
	gpuProcesses = gauge("gpu_processes", "How many processes use the GPU, in a lease or in none.", "gpu", "uuid", "attributed")
	gpuXIDs      = counter(
		"gpu_xid_errors_total", "How many XID errors the driver has reported of the GPU since gpushared started.", "gpu", "uuid", "xid",
	)
	gpuLastXID = gauge(
		"gpu_xid_last_timestamp_seconds", "When the driver last reported this XID error of the GPU.", "gpu", "uuid", "xid",
	)
	gpuHealth = gauge(
		"gpu_health_state", "1 for the health that the GPU is in, 0 for the others. closed and testing take no new lease.", "gpu",
		"uuid", "health",
	)
	gpuTemperature = gauge("gpu_temperature_celsius", "The temperature of the GPU.", ofGPU...)
	gpuMemoryTemp  = gauge("gpu_memory_temperature_celsius", "The temperature of the memory of the GPU.", ofGPU...)
	gpuPower       = gauge("gpu_power_watts", "The power that the GPU draws.", ofGPU...)
	gpuPowerLimit  = gauge(
		"gpu_power_limit_watts",
		"The lowest of all limits of the GPU's power: power_cap of the spec, unless the server has a lower one.",
		ofGPU...)
	gpuClock = gauge("gpu_clock_hertz", "A clock of the GPU: sm or memory.", "gpu", "uuid", "clock")
	gpuFan   = gauge(
		"gpu_fan_speed_ratio",
		"The speed of the GPU's fan, 0 to 1 of its greatest. Absent where the server cools it.",
		ofGPU...)
	gpuThrottled = gauge("gpu_throttled", "1 for each reason why the clocks of the GPU are lowered now.", "gpu", "uuid", "reason")
	gpuCorrected = counter(
		"gpu_memory_errors_corrected_total",
		"How many errors of the GPU's memory were corrected since the board was made.",
		ofGPU...)
	gpuUncorrected = counter(
		"gpu_memory_errors_uncorrected_total",
		"How many errors of the GPU's memory were not corrected since the board was made.",
		ofGPU...)
	gpuRows = gauge(
		"gpu_remapped_rows", "How many rows of the GPU's memory were replaced, by the cause: corrected or uncorrected errors.", "gpu",
		"uuid", "cause",
	)
	gpuRowsPending  = gauge("gpu_remapped_rows_pending", "1 if a reset of the GPU replaces more rows.", ofGPU...)
	gpuRowsFailed   = gauge("gpu_remapped_rows_failed", "1 if a row could not be replaced.", ofGPU...)
	gpuNVLinkErrors = counter(
		"gpu_nvlink_errors_total",
		"How many errors the NVLinks of the GPU had since the driver was loaded, by kind: crc, replay or recovery.", "gpu", "uuid",
		"kind",
	)
	gpuPCIeReplays = counter(
		"gpu_pcie_replays_total",
		"How many transfers over PCIe were repeated since the driver was loaded.",
		ofGPU...)
	gpuHealthRead  = gauge("gpu_health_read_timestamp_seconds", "When the error counters of the GPU were last read.", ofGPU...)
	gpuSensorsRead = gauge(
		"gpu_sensors_read_timestamp_seconds",
		"When temperature, power and clocks of the GPU were last read. They are read every 10 s, and while someone watches.",
		ofGPU...)
	slicesEnforced  = gauge("gpu_time_slices_enforced", "1 if the time shares of a time-sliced GPU with leases are enforced.", ofGPU...)
	slicesContended = gauge("gpu_time_slices_contended", "1 if several leases of a time-sliced GPU have work.", ofGPU...)
	slicesIdle      = gauge(
		"gpu_idle_while_waiting_ratio",
		"The part of the last 10 s in which the GPU was idle while a lease with work waited for its time slice.",
		ofGPU...)
	migEnabled   = gauge("gpu_mig_enabled", "1 if MIG mode is on.", ofGPU...)
	instanceInfo = gauge(
		"mig_instance_info",
		"A MIG device. device is its UUID, empty for an orphan; compute is the profile of a compute instance, if its instance is split. The value is 1.",
		"gpu",
		"uuid",
		"device",
		"instance",
		"profile",
		"compute",
		"start",
		"foreign",
	)
	instanceTotal = gauge(
		"mig_instance_memory_total_bytes",
		"The memory of the instance of the MIG device. Compute instances of one instance share it: each has all of it.",
		ofDevice...)
	instanceUsed = gauge(
		"mig_instance_memory_used_bytes",
		"The memory that is in use on the instance of the MIG device, by all its compute instances.",
		ofDevice...)
	instanceLeased = gauge("mig_instance_leased", "1 if a lease has the MIG device.", ofDevice...)
	instanceBusy   = gauge(
		"mig_instance_utilization_ratio",
		"The part of the last 10 s in which something ran on the instance of the MIG device, 0 to 1. Absent where the driver does not report it.",
		ofDevice...)
	instanceSMs = gauge(
		"mig_instance_multiprocessor_utilization_ratio",
		"The part of the multiprocessors of the instance of the MIG device that were busy in the last 10 s, 0 to 1.",
		ofDevice...)
	instanceBandwidth = gauge(
		"mig_instance_memory_bandwidth_ratio",
		"The part of the bandwidth of the memory of the instance of the MIG device that was used in the last 10 s, 0 to 1.",
		ofDevice...)
	mpsUp       = gauge("mps_up", "1 if the MPS control daemon of the GPU or MIG instance (device) runs.", ofDevice...)
	mpsClients  = gauge("mps_clients", "How many clients the MPS server has.", ofDevice...)
	mpsMost     = gauge("mps_clients_max", "The most clients that the MPS server has.", ofDevice...)
	mpsRestarts = counter(
		"mps_restarts_total",
		"How often the MPS control daemon was started again since gpushared started.",
		ofDevice...)
	mpsDrained = gauge("mps_drained", "1 if an administrator closed MPS to new leases.", ofDevice...)
)

// Tenants, grants, users and leases.
var (
	tenantInfo    = gauge("tenant_info", "A tenant. The value is 1.", "tenant", "priority")
	tenantFrozen  = gauge("tenant_frozen", "1 if an administrator has frozen the tenant.", "tenant")
	limitEnforced = gauge(
		"tenant_limit_enforced", "1 if this limit of the host is in force for the tenant, as read back.", "tenant", "limit",
	)
	grantLeases = gauge("grant_leases", "How many leases the grant has that are not queued.", "tenant", "grant", "kind")
	grantMost   = gauge(
		"grant_leases_max",
		"How many leases the grant may have at once. Absent where only GPU memory limits them.",
		ofGrant...)
	grantQueued = gauge("grant_queued_leases", "How many leases wait for the grant.", ofGrant...)
	grantOldest = gauge(
		"grant_queue_oldest_timestamp_seconds",
		"When the lease that waits longest for the grant was requested. Absent if none waits.",
		ofGrant...)
	userLeases    = gauge("user_leases", "How many leases the user has.", "user")
	userMost      = gauge("user_leases_max", "How many leases the user may have. Absent without a limit.", "user")
	userGranted   = gauge("user_gpu_memory_granted_bytes", "The GPU memory of the grants that the user has leases of.", "user")
	userLimit     = gauge("user_gpu_memory_limit_bytes", "The GPU memory that the user may have. Absent without a limit.", "user")
	shareEntitled = gauge(
		"share_entitled_ratio",
		"The share of the device (a GPU or MIG instance) that the leases of the grant are entitled to, 0 to 1.",
		ofShare...)
	shareDue = gauge(
		"share_due_ratio",
		"The share of the GPU's time that the leases of the grant get now next to the others with work. Absent without work.",
		ofShare...)
	shareBusy = gauge(
		"share_busy_ratio",
		"The part of the last 10 s in which kernels of the grant's leases ran, estimated from the driver's samples. Absent while that of one of them is unknown.",
		ofShare...)
	shareOccupied = gauge(
		"share_occupancy_ratio",
		"The part of the last 10 s in which the leases of the grant had the GPU. Absent if shares are not enforced.",
		ofShare...)
	shareEnforced = gauge("share_enforced", "1 if the share of every lease of the grant is enforced.", ofShare...)
	shareMet      = gauge(
		"share_met",
		"1 if every lease of the grant had its share of the last 10 s, or needed less, as measured; 0 if one had not. Absent while that is not measured.",
		ofShare...)
	memoryUsed = gauge(
		"grant_gpu_memory_used_bytes",
		"The GPU memory that the leases of the grant use. Absent while that of one of them is unknown.",
		ofGrant...)
	memoryLimit = gauge(
		"grant_gpu_memory_limit_bytes",
		"The limit of GPU memory of the grant, for all its leases on one GPU.",
		ofGrant...)
	memoryBackend = gauge(
		"grant_gpu_memory_backend_leases", "How many leases of the grant have their GPU memory limited by this backend.", "tenant",
		"grant", "backend", "hard",
	)
	notIsolated  = gauge("grant_not_isolated_leases", "How many leases of the grant have a restriction that is not enforced.", ofGrant...)
	frozenLeases = gauge("grant_frozen_leases", "How many leases of the grant are frozen, other than for a time slice.", ofGrant...)
	leaseInfo    = gauge(
		"lease_info", "A lease on a GPU; without a GPU while it is queued. The value is 1.", "lease", "tenant", "grant", "kind",
		"state", "origin", "user", "gpu", "uuid", "device", "engine_job", "account",
	)
	usedBusy = counter(
		"busy_seconds_total", "The time in which kernels of leases ran on the GPU, as far as it was measured, since gpushared started.",
		"gpu", "uuid", "tenant", "user",
	)
	usedOccupancy = counter(
		"occupancy_seconds_total", "The time in which leases were charged for the GPU, as far as it is known, since gpushared started.",
		"gpu", "uuid", "tenant", "user",
	)
)

// GPU memory that is held and not used, by leases and outside of leases. Leases have a tenant; outside of leases it is empty.
var (
	heldMemory = gauge(
		"held_gpu_memory_bytes",
		"The GPU memory that leases of the user, or their processes outside of leases (without a tenant), keep from others. use is busy, idle (no kernel ran for 10 minutes or longer) or unknown.",
		"gpu",
		"uuid",
		"tenant",
		"user",
		"use",
	)
	heldIdle = gauge(
		"held_idle_seconds", "For how long the one that was idle longest was seen idle. Absent while that is not measured.",
		"gpu", "uuid", "tenant", "user",
	)
	outsideMemory = gauge(
		"outside_gpu_memory_bytes", "The GPU memory that the user's processes outside of leases use. Absent if it is not known.",
		"gpu", "uuid", "user",
	)
)

// What gpushared did.
var (
	converges    = counter("converge_runs_total", "How often the node was compared with the spec.")
	drifts       = counter("drift_corrections_total", "How many differences that were made outside gpushare were corrected.")
	steps        = counter("change_steps_total", "How many steps of changes were carried out.")
	freezes      = counter("freezes_total", "How often a lease was frozen, time slices included.")
	messages     = counter("driver_messages_total", "How many requests were sent to the NVML worker.")
	writes       = counter("driver_writes_total", "How many of these change the node.")
	readingTime  = counter("driver_reading_seconds_total", "The time that readings took inside the driver.")
	timeouts     = counter("driver_timeouts_total", "How many requests to the NVML worker were not answered in time.")
	workerStarts = counter("driver_worker_starts_total", "How often the NVML worker was started.")
)
