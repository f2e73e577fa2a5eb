package api

import "strings"

// words are the values of each key of the spec that has a closed set of them, by its path.
var words = map[string][]string{
	"version":                          {"v1"},
	"node.enforce":                     {"observe", "on", "off"},
	"node.health.temperature.do":       {TemperatureReport, TemperaturePauseLow},
	"node.isolation.logins":            {LoginsOpen, LoginsClosed},
	"node.isolation.migration":         {MigrationDeny, MigrationDetect},
	"node.isolation.unattributed":      {UnattributedReport, UnattributedStop},
	"node.isolation.unfrozen":          {UnfrozenReport, UnfrozenStop},
	"node.isolation.attach":            {AttachMember, AttachAdmin},
	"node.engine.freeze[]":             {OwnerSlurm, OwnerKubernetes},
	"node.status_visible":              {StatusVisibleOwn, StatusVisibleAll},
	"gpus[].mode":                      {ModeExclusive, ModeMIG, ModeMPS, ModeTimeslice, ModeExternal},
	"gpus[].health.temperature.do":     {TemperatureReport, TemperaturePauseLow},
	"gpus[].mig.layout[].attributes[]": {"me", "me.all", "-me", "gfx"},
	"gpus[].mig.mps[].attributes[]":    {"me", "me.all", "-me", "gfx"},
	"gpus[].share_with[]":              {ShareWithLocal},
	"gpus[].mps.bypass":                {BypassReport, BypassStop, BypassDeny},
	"tenants[].cpu.numa":               {NUMAPrefer, NUMAStrict},
	"tenants[].priority":               {"low", "normal", "high"},
	"tenants[].preempt":                {PreemptStop},
	"tenants[].on_removal":             {OnRemovalContinue, OnRemovalStop},
	"tenants[].devices[]":              {"rdma", "fuse", "dri"},
	"tenants[].overuse.gpu_memory":     {"observe", "notify", "freeze", "kill"},
	"tenants[].grants[].attributes[]":  {"me", "me.all", "-me", "gfx"},
	"tenants[].grants[].idle.do":       {IdleNotify, IdleStop},
	"tenants[].grants[].accept":        {AcceptHard, AcceptBestEffort},
	"tenants[].grants[].latency":       {LatencyLow},
}

// Words lists the values that a key of the spec may have, and nil if they are no closed set. The path is that of a finding.
func Words(path string) []string { return words[keyOf(path)] }

// Range is the least and the highest of a number of the spec. Most is 0 if there is no bound.
type Range struct{ Least, Most uint64 }

// ranges are those of the numbers of the spec, by path.
var ranges = map[string]Range{
	"base":                            {},
	"node.per_user.leases":            {1, maxLeases},
	"node.queue.waiting":              {1, mostWaiting},
	"gpus[].select.index":             {0, maxGPUs - 1},
	"gpus[].select.index[]":           {0, maxGPUs - 1},
	"gpus[].mig.layout[].slices":      {1, maxSlices},
	"gpus[].mig.mps[].slices":         {1, maxSlices},
	"tenants[].cpu.weight":            {1, 10000},
	"tenants[].io.weight":             {1, 10000},
	"tenants[].tasks":                 {1, maxTasks},
	"tenants[].grants[].slices":       {1, maxSlices},
	"tenants[].grants[].exclusive":    {1, maxGPUs},
	"tenants[].grants[].gpus.index":   {0, maxGPUs - 1},
	"tenants[].grants[].gpus.index[]": {0, maxGPUs - 1},
	"tenants[].grants[].max_leases":   {1, maxLeases},
}

// RangeOf gives the range of a key that is a number.
func RangeOf(path string) (r Range, ok bool) {
	r, ok = ranges[keyOf(path)]
	return r, ok
}

// keyOf is a path without the places in lists: gpus[3].mode is gpus[].mode.
func keyOf(path string) string {
	if !strings.Contains(path, "[") {
		return path
	}
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(path, "[")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		b.WriteString("[]")
		_, path, _ = strings.Cut(rest, "]")
	}
}
