//go:build cgo

package nvml

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/gpushare/gpushare/gpu"
)

// feature is a function group that some libraries lack.
type feature int

// The features, each with the calls that it needs.
const (
	required feature = iota // the driver cannot be opened without it
	initFlags
	byPCI
	driverVersion
	libraryVersion
	cudaVersion
	model
	minorNumber
	pciInfo
	displayMode
	displayActive
	reservedMemory
	utilizationRates
	readComputeMode
	setComputeMode
	fieldValues
	migMode
	setMIGMode
	migInstances
	profileNames
	changeInstances
	readPlacement
	placeCompute
	migWalk
	computeProcesses
	graphicsProcesses
	mpsProcesses
	processUtilization
	utilizationSeries
	instanceUse
	nvLinks
	memoryLimits
	temperature
	temperatureThreshold
	readPower
	enforcedPower
	clocks
	maxClocks
	fanSpeed
	setPower
	clockReasons
	eccErrors
	remappedRows
	rowBanks
	nvLinkErrors
	pcieReplays
	events
)

// need is one requirement of a feature: one of its symbols must exist. The preferred symbol is first.
type need struct {
	feature feature
	symbols []string
	loss    string // the effect if none of them exists
}

// needs is the table of the symbols that this package calls, except those that every library has.
func needs() []need {
	return []need{
		{required, []string{"nvmlInit_v2", "nvmlInit"}, ""},
		{required, []string{"nvmlShutdown"}, ""},
		{required, []string{"nvmlErrorString"}, ""}, // go-nvml calls it to print any code
		{required, []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}, ""},
		{required, []string{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}, ""},
		{required, []string{"nvmlDeviceGetHandleByUUID"}, ""},
		{required, []string{"nvmlDeviceGetUUID"}, ""},
		{required, []string{"nvmlDeviceGetIndex"}, ""},
		{required, []string{"nvmlDeviceGetMemoryInfo"}, ""},

		{initFlags, []string{"nvmlInitWithFlags"}, "a node without GPUs may look like one without a driver"},
		{byPCI, []string{"nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId"}, "an excluded GPU is still accessed once"},
		{driverVersion, []string{"nvmlSystemGetDriverVersion"}, "the driver's version is not shown"},
		{libraryVersion, []string{"nvmlSystemGetNVMLVersion"}, "the library's version is not shown"},
		{cudaVersion, []string{"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"}, "the CUDA version is not shown"},
		{model, []string{"nvmlDeviceGetName"}, "models have no name"},
		{minorNumber, []string{"nvmlDeviceGetMinorNumber"}, "device nodes are not known"},
		{
			pciInfo,
			[]string{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
			"PCI addresses and NUMA nodes are not known",
		},
		{displayMode, []string{"nvmlDeviceGetDisplayMode"}, "attached displays are not seen"},
		{displayActive, []string{"nvmlDeviceGetDisplayActive"}, "active displays are not seen"},
		{reservedMemory, []string{"nvmlDeviceGetMemoryInfo_v2"}, "reserved memory counts as used"},
		{utilizationRates, []string{"nvmlDeviceGetUtilizationRates"}, "the utilisation is not known"},
		{readComputeMode, []string{"nvmlDeviceGetComputeMode"}, "the compute mode is not known"},
		{setComputeMode, []string{"nvmlDeviceSetComputeMode"}, "the compute mode cannot be set"},
		{
			fieldValues,
			[]string{"nvmlDeviceGetFieldValues"},
			"whether a mode change needs a reset, the memory temperature and the needed recovery are not known",
		},

		{migMode, []string{"nvmlDeviceGetMigMode"}, "no GPU counts as capable of MIG"},
		{setMIGMode, []string{"nvmlDeviceSetMigMode"}, "the MIG mode cannot be set"},
		{
			migInstances,
			[]string{"nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstanceProfileInfo"},
			"MIG instances are not read",
		},
		{
			migInstances,
			[]string{"nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstancePossiblePlacements"},
			"MIG instances are not read",
		},
		{migInstances, []string{"nvmlDeviceGetGpuInstances"}, "MIG instances are not read"},
		{migInstances, []string{"nvmlDeviceGetGpuInstanceById"}, "MIG instances are not read"},
		{migInstances, []string{"nvmlGpuInstanceGetInfo"}, "MIG instances are not read"},
		{migInstances, []string{"nvmlGpuInstanceGetComputeInstanceProfileInfo"}, "MIG instances are not read"},
		{migInstances, []string{"nvmlGpuInstanceGetComputeInstances"}, "MIG instances are not read"},
		{migInstances, []string{"nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceGetInfo"}, "MIG instances are not read"},
		{profileNames, []string{"nvmlDeviceGetGpuInstanceProfileInfoV"}, "profile names are composed from slices and memory"},
		{changeInstances, []string{"nvmlDeviceCreateGpuInstanceWithPlacement"}, "MIG instances cannot be changed"},
		{changeInstances, []string{"nvmlGpuInstanceDestroy"}, "MIG instances cannot be changed"},
		{changeInstances, []string{"nvmlGpuInstanceCreateComputeInstance"}, "MIG instances cannot be changed"},
		{changeInstances, []string{"nvmlComputeInstanceDestroy"}, "MIG instances cannot be changed"},
		{readPlacement, []string{"nvmlComputeInstanceGetInfo_v2"}, "placements of compute instances are not read"},
		{placeCompute, []string{"nvmlGpuInstanceCreateComputeInstanceWithPlacement"}, "compute instances cannot be placed"},
		{migWalk, []string{"nvmlDeviceGetMaxMigDeviceCount"}, "the UUID of a compute instance may not be found"},
		{migWalk, []string{"nvmlDeviceGetMigDeviceHandleByIndex"}, "the UUID of a compute instance may not be found"},
		{migWalk, []string{"nvmlDeviceGetGpuInstanceId"}, "the UUID of a compute instance may not be found"},
		{migWalk, []string{"nvmlDeviceGetComputeInstanceId"}, "the UUID of a compute instance may not be found"},

		{
			computeProcesses,
			[]string{
				"nvmlDeviceGetComputeRunningProcesses_v3",
				"nvmlDeviceGetComputeRunningProcesses_v2",
				"nvmlDeviceGetComputeRunningProcesses",
			},
			"compute processes are not seen",
		},
		{
			graphicsProcesses,
			[]string{
				"nvmlDeviceGetGraphicsRunningProcesses_v3",
				"nvmlDeviceGetGraphicsRunningProcesses_v2",
				"nvmlDeviceGetGraphicsRunningProcesses",
			},
			"graphics processes are not seen",
		},
		{
			mpsProcesses,
			[]string{
				"nvmlDeviceGetMPSComputeRunningProcesses_v3",
				"nvmlDeviceGetMPSComputeRunningProcesses_v2",
				"nvmlDeviceGetMPSComputeRunningProcesses",
			},
			"clients of MPS are not seen",
		},
		{
			processUtilization,
			[]string{"nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"},
			"the utilisation by process is not known",
		},
		{utilizationSeries, []string{"nvmlDeviceGetSamples"}, "idle time between time slices is not measured"},
		{instanceUse, []string{"nvmlGpmQueryDeviceSupport"}, "the utilisation of MIG instances is not known"},
		{instanceUse, []string{"nvmlGpmSampleAlloc"}, "the utilisation of MIG instances is not known"},
		{instanceUse, []string{"nvmlGpmSampleFree"}, "the utilisation of MIG instances is not known"},
		{instanceUse, []string{"nvmlGpmMigSampleGet"}, "the utilisation of MIG instances is not known"},
		{instanceUse, []string{"nvmlGpmMetricsGet"}, "the utilisation of MIG instances is not known"},

		{nvLinks, []string{"nvmlDeviceGetNvLinkState"}, "which GPUs NVLink joins is not known"},
		{nvLinks, []string{"nvmlDeviceGetNvLinkRemoteDeviceType"}, "which GPUs NVLink joins is not known"},
		{
			nvLinks,
			[]string{"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"},
			"which GPUs NVLink joins is not known",
		},

		{memoryLimits, []string{"nvmlDeviceSetMemoryLimits_v1"}, "the driver limits no GPU memory by cgroup (needs R615)"},
		{memoryLimits, []string{"nvmlDeviceGetMemoryLimits_v1"}, "the driver limits no GPU memory by cgroup (needs R615)"},
		{temperature, []string{"nvmlDeviceGetTemperature"}, "the temperature is not known"},
		{
			temperatureThreshold,
			[]string{"nvmlDeviceGetTemperatureThreshold"},
			"the temperature at which the hardware slows down is not known",
		},
		{readPower, []string{"nvmlDeviceGetPowerUsage"}, "power and its limit are not known"},
		{readPower, []string{"nvmlDeviceGetPowerManagementLimit"}, "power and its limit are not known"},
		{readPower, []string{"nvmlDeviceGetPowerManagementLimitConstraints"}, "power and its limit are not known"},
		{readPower, []string{"nvmlDeviceGetPowerManagementDefaultLimit"}, "power and its limit are not known"},
		{enforcedPower, []string{"nvmlDeviceGetEnforcedPowerLimit"}, "power limits that others than the driver set are not seen"},
		{clocks, []string{"nvmlDeviceGetClockInfo"}, "the clocks are not known"},
		{maxClocks, []string{"nvmlDeviceGetMaxClockInfo"}, "the greatest clocks are not known"},
		{fanSpeed, []string{"nvmlDeviceGetFanSpeed"}, "the speed of fans is not known"},
		{setPower, []string{"nvmlDeviceSetPowerManagementLimit"}, "the power limit cannot be set"},
		{
			clockReasons,
			[]string{"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"},
			"why clocks are lowered is not known",
		},
		{eccErrors, []string{"nvmlDeviceGetTotalEccErrors"}, "errors of memory are not counted"},
		{remappedRows, []string{"nvmlDeviceGetRemappedRows"}, "replaced rows of memory are not known"},
		{rowBanks, []string{"nvmlDeviceGetRowRemapperHistogram"}, "spare rows of memory are not counted"},
		{nvLinkErrors, []string{"nvmlDeviceGetNvLinkErrorCounter"}, "errors of NVLinks are not counted"},
		{pcieReplays, []string{"nvmlDeviceGetPcieReplayCounter"}, "repeated PCIe transfers are not counted"},

		{events, []string{"nvmlEventSetCreate"}, "events are not seen"},
		{events, []string{"nvmlEventSetWait_v2", "nvmlEventSetWait"}, "events are not seen"},
		{events, []string{"nvmlEventSetFree"}, "events are not seen"},
		{events, []string{"nvmlDeviceRegisterEvents"}, "events are not seen"},
		{events, []string{"nvmlDeviceGetSupportedEventTypes"}, "events are not seen"},
	}
}

// symbols is what the loaded library has. It does not change.
type symbols struct {
	lacking map[feature]string   // feature → what is lost
	absent  map[feature][]string // the functions that a feature lacks: the preferred symbol of each
	missing []string             // missing symbols in the table's order
	best    map[string]string    // by the preferred symbol of a need: the symbol to call
	at      map[string]unsafe.Pointer
}

// findSymbols looks up all symbols. The error names the first missing required symbol.
func findSymbols(lookup func(string) unsafe.Pointer) (symbols, error) {
	s := symbols{
		lacking: make(map[feature]string),
		absent:  make(map[feature][]string),
		best:    make(map[string]string),
		at:      make(map[string]unsafe.Pointer),
	}
	noted := make(map[string]bool)
	for _, n := range needs() {
		found := ""
		for _, name := range n.symbols {
			p := lookup(name)
			switch {
			case p != nil:
				s.at[name] = p
				if found == "" {
					found = name
				}
			case found == "" && !noted[name]:
				noted[name] = true
				s.missing = append(s.missing, name)
			}
		}
		switch {
		case found != "":
			s.best[n.symbols[0]] = found
		case n.feature == required:
			return s, fmt.Errorf("the library lacks %s", n.symbols[0])
		default:
			s.lacking[n.feature] = n.loss
			s.absent[n.feature] = append(s.absent[n.feature], n.symbols[0])
		}
	}
	return s, nil
}

// has reports whether the library has all symbols that a feature needs.
func (s symbols) has(f feature) bool {
	_, lacks := s.lacking[f]
	return !lacks
}

// missingMIG lists what a library lacks of MIG; nil when it lacks nothing.
func (s symbols) missingMIG(library string) *gpu.MissingMIG {
	m := gpu.MissingMIG{
		Library: library, Read: slices.Concat(s.absent[migMode], s.absent[migInstances]), Mode: s.absent[setMIGMode],
		Change: s.absent[changeInstances], Device: s.absent[migWalk], Placements: s.absent[readPlacement], Place: s.absent[placeCompute],
	}
	if len(m.Read)+len(m.Mode)+len(m.Change)+len(m.Device)+len(m.Placements)+len(m.Place) == 0 {
		return nil
	}
	return &m
}

// call returns the symbol to call for the preferred one, with its address; nil when there is none.
func (s symbols) call(best string) (name string, at unsafe.Pointer) {
	name = s.best[best]
	return name, s.at[name]
}

// losses lists the effects of missing features in the table's order.
func (s symbols) losses() []string {
	var out []string
	for _, n := range needs() {
		if why, ok := s.lacking[n.feature]; ok && (len(out) == 0 || out[len(out)-1] != why) {
			out = append(out, why)
		}
	}
	return out
}
