//go:build tools

package tools

import "github.com/gpushare/gpushare/gpu"

// The documents of read.py. Fields have the names in that file and the units of the library.

// answer is a value or an error such as "NotSupported".
type answer[T any] struct {
	Value T      `json:"value"`
	Error string `json:"error"`
}

type nodeReading struct {
	Driver  string            `json:"driver"`
	Library string            `json:"library"`
	CUDA    int               `json:"cuda"`
	GPUs    []gpuReading      `json:"gpus"`
	Lacking []string          `json:"lacking"`
	Refused map[string]string `json:"refused"`
}

type gpuReading struct {
	Index       int               `json:"index"`
	ByUUID      int               `json:"by_uuid"`
	ByPCI       int               `json:"by_pci"`
	UUID        gpu.UUID          `json:"uuid"`
	Name        string            `json:"name"`
	Minor       int               `json:"minor"`
	PCI         pciReading        `json:"pci"`
	ComputeMode int               `json:"compute_mode"`
	Memory      memoryReading     `json:"memory"`
	MIG         modeReading       `json:"mig"`
	IsMIG       bool              `json:"is_mig"`
	Resetless   resetlessReading  `json:"resetless"`
	Profiles    profilesReading   `json:"profiles"`
	Instances   []instanceReading `json:"instances"`
	MIGDevices  devicesReading    `json:"mig_devices"`
	Processes   processesReading  `json:"processes"`
	Links       linksReading      `json:"links"`

	Utilization        answer[int]                  `json:"utilization"`
	ProcessUtilization answer[[]utilizationReading] `json:"process_utilization"`
	UtilizationSeries  answer[seriesReading]        `json:"utilization_series"`

	Temperature answer[int]    `json:"temperature"`
	Power       answer[int]    `json:"power"`
	PowerLimit  answer[int]    `json:"power_limit"`
	Clock       answer[int]    `json:"clock"`
	Fan         answer[int]    `json:"fan"`
	Energy      answer[uint64] `json:"energy"`
}

type pciReading struct {
	ID     string `json:"id"`
	Legacy string `json:"legacy"`
	Domain uint32 `json:"domain"`
	Bus    uint32 `json:"bus"`
	Device uint32 `json:"device"`
	Board  uint32 `json:"board"`
	// Subsystem is the id of the board's maker.
	Subsystem uint32 `json:"subsystem"`
}

// memoryReading are the results of the two versions of the call. Version 1 counts reserved memory as used.
type memoryReading struct {
	First  gpu.Memory `json:"first"`
	Second gpu.Memory `json:"second"`
}

type modeReading struct {
	Current int `json:"current"`
	Pending int `json:"pending"`
}

// linksReading counts links: by address, bus and type of the peer, and by the error for links that do not exist.
type linksReading struct {
	To      map[string]int `json:"to"`
	Down    int            `json:"down"`
	Refused map[string]int `json:"refused"`
}

type resetlessReading struct {
	Error int    `json:"error"`
	Value uint64 `json:"value"`
}

type profilesReading struct {
	Found   map[uint32]profileReading `json:"found"`
	Refused map[string]int            `json:"refused"`
}

type profileReading struct {
	ID           uint32          `json:"id"`
	Name         string          `json:"name"`
	Slices       uint32          `json:"slices"`
	Max          uint32          `json:"max"`
	SMs          uint32          `json:"sms"`
	Copy         uint32          `json:"copy"`
	Decoders     uint32          `json:"decoders"`
	Encoders     uint32          `json:"encoders"`
	JPEG         uint32          `json:"jpeg"`
	OFA          uint32          `json:"ofa"`
	MemoryMiB    uint64          `json:"memory_mib"`
	FirstVersion bool            `json:"first_version"` // version 1 of the struct has the same values
	Placements   []gpu.Placement `json:"placements"`
	Capacity     answer[uint32]  `json:"capacity"`
}

type instanceReading struct {
	ID        uint32           `json:"id"`
	ProfileID uint32           `json:"profile_id"`
	Placement gpu.Placement    `json:"placement"`
	Compute   []computeReading `json:"compute"`
}

type computeReading struct {
	ID        uint32        `json:"id"`
	ProfileID uint32        `json:"profile_id"`
	Placement gpu.Placement `json:"placement"`
	UUID      gpu.UUID      `json:"uuid"`
	Profile   string        `json:"profile"`
	SMs       uint32        `json:"sms"`
}

type devicesReading struct {
	Capacity uint32          `json:"capacity"`
	Devices  []deviceReading `json:"devices"`
	Refused  []string        `json:"refused"` // the errors of missing devices up to capacity
}

type deviceReading struct {
	UUID        gpu.UUID          `json:"uuid"`
	Name        string            `json:"name"`
	IsMIG       bool              `json:"is_mig"`
	GI          uint32            `json:"gi"`
	CI          uint32            `json:"ci"`
	Parent      gpu.UUID          `json:"parent"`
	Attributes  attributesReading `json:"attributes"`
	Memory      memoryReading     `json:"memory"`
	Processes   processesReading  `json:"processes"`
	Utilization answer[int]       `json:"utilization"`
	// ProcessUtilization is always an error.
	ProcessUtilization string `json:"process_utilization"`
}

type attributesReading struct {
	SMs       uint32 `json:"sms"`
	Copy      uint32 `json:"copy"`
	Decoders  uint32 `json:"decoders"`
	Encoders  uint32 `json:"encoders"`
	JPEG      uint32 `json:"jpeg"`
	OFA       uint32 `json:"ofa"`
	GISlices  uint32 `json:"gi_slices"`
	CISlices  uint32 `json:"ci_slices"`
	MemoryMiB uint64 `json:"memory_mib"`
}

type processesReading struct {
	Compute  []processReading `json:"compute"`
	Graphics []processReading `json:"graphics"`
	MPS      []processReading `json:"mps"`
}

type processReading struct {
	PID    int     `json:"pid"`
	Memory *uint64 `json:"memory"`
	GI     *uint32 `json:"gi"`
	CI     *uint32 `json:"ci"`
	Name   string  `json:"name"`
}

type seriesReading struct {
	Type    int   `json:"type"`
	Percent []int `json:"percent"`
}

type utilizationReading struct {
	PID int `json:"pid"`
	SM  int `json:"sm"`
}

type eventReading struct {
	Supported uint64   `json:"supported"`
	Nothing   string   `json:"nothing"` // the result of a wait before the event
	UUID      gpu.UUID `json:"uuid"`
	Type      uint64   `json:"type"`
	Data      uint64   `json:"data"`
	GI        uint32   `json:"gi"`
	CI        uint32   `json:"ci"`
}
