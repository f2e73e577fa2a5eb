package worker

import "time"

// Op names one operation of the driver on the wire and in Stats.
type Op string

// The operations. Each is one request and one reply, except OpEvents, which has a stream of replies.
const (
	OpNode             Op = "node"
	OpSnapshot         Op = "snapshot"
	OpProfiles         Op = "profiles"
	OpMemory           Op = "memory"
	OpProcesses        Op = "processes"
	OpUtilization      Op = "utilization"
	OpSeries           Op = "utilization-series"
	OpNVLinks          Op = "nvlinks"
	OpMemoryLimit      Op = "memory-limit"
	OpSetMemoryLimit   Op = "set-memory-limit"
	OpHealth           Op = "health"
	OpSensors          Op = "sensors"
	OpSetPowerLimit    Op = "set-power-limit"
	OpSetMIGMode       Op = "set-mig-mode"
	OpCreateInstance   Op = "create-instance"
	OpCompleteInstance Op = "complete-instance"
	OpDestroyInstance  Op = "destroy-instance"
	OpSetComputeMode   Op = "set-compute-mode"
	OpEvents           Op = "events"

	OpInstanceUse Op = "instance-use"
	// OpInstanceProcesses reads fewer lists than OpProcesses.
	OpInstanceProcesses Op = "instance-processes"

	// opCancel has no reply: the caller no longer waits for the named request.
	opCancel Op = "cancel"
)

// thread is the thread of the worker that runs an operation.
type thread int

const (
	threadNode   thread = iota // operations on the whole node
	threadGPU                  // one thread for each GPU
	threadEvents               // blocks until an event occurs
)

// opInfo describes an operation.
type opInfo struct {
	verb   string // completes "cannot … on GPU-…: reason"
	thread thread
	write  bool // changes the node: never sent twice
	// timeout selects the operation's time limit.
	timeout func(Deadlines) time.Duration
}

// lookupOp describes op. ok is false for an unknown operation.
func lookupOp(op Op) (info opInfo, ok bool) {
	read := func(d Deadlines) time.Duration { return d.Read }
	change := func(d Deadlines) time.Duration { return d.Change }
	switch op {
	case OpNode:
		return opInfo{"read the node", threadNode, false, func(d Deadlines) time.Duration { return d.Node }}, true
	case OpSnapshot:
		return opInfo{"read the state", threadGPU, false, func(d Deadlines) time.Duration { return d.Snapshot }}, true
	case OpProfiles:
		return opInfo{"read the MIG profiles", threadGPU, false, func(d Deadlines) time.Duration { return d.Profiles }}, true
	case OpMemory:
		return opInfo{"read the memory", threadGPU, false, read}, true
	case OpProcesses, OpInstanceProcesses:
		return opInfo{"read the processes", threadGPU, false, read}, true
	case OpUtilization:
		return opInfo{"read the utilisation", threadGPU, false, read}, true
	case OpInstanceUse:
		return opInfo{"read the utilisation of instances", threadGPU, false, read}, true
	case OpSeries:
		return opInfo{"read the utilisation series", threadGPU, false, read}, true
	case OpNVLinks:
		return opInfo{"read the NVLinks", threadGPU, false, func(d Deadlines) time.Duration { return d.Profiles }}, true
	case OpMemoryLimit:
		return opInfo{"read the memory limit", threadGPU, false, read}, true
	case OpSetMemoryLimit:
		return opInfo{"set the memory limit", threadGPU, true, read}, true
	case OpHealth:
		return opInfo{"read the health", threadGPU, false, func(d Deadlines) time.Duration { return d.Profiles }}, true
	case OpSensors:
		return opInfo{"read the sensors", threadGPU, false, read}, true
	case OpSetPowerLimit:
		return opInfo{"set the power limit", threadGPU, true, change}, true
	case OpSetMIGMode:
		return opInfo{"set the MIG mode", threadGPU, true, func(d Deadlines) time.Duration { return d.Mode }}, true
	case OpCreateInstance:
		return opInfo{"create instance", threadGPU, true, change}, true
	case OpCompleteInstance:
		return opInfo{"complete instance", threadGPU, true, change}, true
	case OpDestroyInstance:
		return opInfo{"destroy instance", threadGPU, true, change}, true
	case OpSetComputeMode:
		return opInfo{"set the compute mode", threadGPU, true, change}, true
	case OpEvents:
		return opInfo{"watch events", threadEvents, false, func(Deadlines) time.Duration { return 0 }}, true
	}
	return opInfo{}, false
}

// Deadlines are the time limits of the operations. A GPU that exceeds one is unresponsive. Zero fields have the defaults.
// The time of an operation starts when it is sent, not while it waits for another one on the same GPU, and
// only the time in which this process runs counts. A reading does not time out while any GPU is being changed.
type Deadlines struct {
	Start    time.Duration // from launching a worker to its first reading of the node; 10 s
	Node     time.Duration // 10 s
	Snapshot time.Duration // 2 s
	Profiles time.Duration // 10 s: many calls, some of them privileged; NVLinks and health too, which are as many
	Read     time.Duration // memory, processes, utilisation, memory limits, sensors; 2 s
	Change   time.Duration // create, complete, destroy, compute mode, power limit; 30 s
	Mode     time.Duration // the MIG mode, which may reset the GPU; 60 s
}

// withDefaults fills the zero fields.
func (d Deadlines) withDefaults() Deadlines {
	set := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	set(&d.Start, 10*time.Second)
	set(&d.Node, 10*time.Second)
	set(&d.Snapshot, 2*time.Second)
	set(&d.Profiles, 10*time.Second)
	set(&d.Read, 2*time.Second)
	set(&d.Change, 30*time.Second)
	set(&d.Mode, 60*time.Second)
	return d
}
