package worker

import "time"

// Op names one operation of the driver on the wire and in Stats.
type Op string

// The operations. Each is one message and one reply, but for OpEvents, which is answered by a stream.
const (
	OpNode             Op = "node"
	OpSnapshot         Op = "snapshot"
	OpProfiles         Op = "profiles"
	OpMemory           Op = "memory"
	OpProcesses        Op = "processes"
	OpUtilization      Op = "utilization"
	OpNVLinks          Op = "nvlinks"
	OpSetMIGMode       Op = "set-mig-mode"
	OpCreateInstance   Op = "create-instance"
	OpCompleteInstance Op = "complete-instance"
	OpDestroyInstance  Op = "destroy-instance"
	OpSetComputeMode   Op = "set-compute-mode"
	OpEvents           Op = "events"

	// opCancel has no reply: the caller of the named request has gone.
	opCancel Op = "cancel"
)

// thread says which thread of the worker carries an operation out.
type thread int

const (
	threadNode   thread = iota // what concerns the whole node
	threadGPU                  // one thread for each GPU
	threadEvents               // blocks for as long as nothing happens
)

// opInfo is all that the package knows of an operation.
type opInfo struct {
	verb   string // completes "cannot … on GPU-…: why"
	thread thread
	write  bool // changes the node: never sent twice
	// timeout picks the operation's time limit.
	timeout func(Deadlines) time.Duration
}

// lookupOp describes op. ok is false for what is no operation of the driver.
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
	case OpProcesses:
		return opInfo{"read the processes", threadGPU, false, read}, true
	case OpUtilization:
		return opInfo{"read the utilisation", threadGPU, false, read}, true
	case OpNVLinks:
		return opInfo{"read the NVLinks", threadGPU, false, func(d Deadlines) time.Duration { return d.Profiles }}, true
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

// Deadlines says how long each kind of operation may take before the GPU counts as sick. Zero fields take the
// defaults. An operation's clock starts when it is sent, not while it waits for another one on the same GPU, and that of
// a reading does not run out while any GPU is being changed.
type Deadlines struct {
	Start    time.Duration // from launching a worker to its first reading of the node; 10 s
	Node     time.Duration // 10 s
	Snapshot time.Duration // 2 s
	Profiles time.Duration // 10 s: many calls, some of them privileged; NVLinks too, which are as many
	Read     time.Duration // memory, processes, utilisation; 2 s
	Change   time.Duration // create, complete, destroy, compute mode; 30 s
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
