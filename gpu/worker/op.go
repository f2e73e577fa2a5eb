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
	// yields: it lets others in between, and has the deadline of those at least. between: it may be one of them.
	yields, between bool
	// timeout selects the operation's time limit.
	timeout func(Deadlines) time.Duration
}

func nodeTime(d Deadlines) time.Duration     { return d.Node }
func snapshotTime(d Deadlines) time.Duration { return d.Snapshot }
func profilesTime(d Deadlines) time.Duration { return d.Profiles }
func readTime(d Deadlines) time.Duration     { return d.Read }
func changeTime(d Deadlines) time.Duration   { return d.Change }
func modeTime(d Deadlines) time.Duration     { return d.Mode }
func noTime(Deadlines) time.Duration         { return 0 }

// operations describes each operation.
var operations = map[Op]opInfo{
	OpNode:              {verb: "read the node", thread: threadNode, timeout: nodeTime},
	OpSnapshot:          {verb: "read the state", thread: threadGPU, yields: true, timeout: snapshotTime},
	OpProfiles:          {verb: "read the MIG profiles", thread: threadGPU, timeout: profilesTime},
	OpMemory:            {verb: "read the memory", thread: threadGPU, timeout: readTime},
	OpProcesses:         {verb: "read the processes", thread: threadGPU, yields: true, timeout: readTime},
	OpInstanceProcesses: {verb: "read the processes", thread: threadGPU, between: true, timeout: readTime},
	OpUtilization:       {verb: "read the utilisation", thread: threadGPU, timeout: readTime},
	OpInstanceUse:       {verb: "read the utilisation of instances", thread: threadGPU, timeout: readTime},
	OpSeries:            {verb: "read the utilisation series", thread: threadGPU, timeout: readTime},
	OpNVLinks:           {verb: "read the NVLinks", thread: threadGPU, timeout: profilesTime},
	OpMemoryLimit:       {verb: "read the memory limit", thread: threadGPU, timeout: readTime},
	OpSetMemoryLimit:    {verb: "set the memory limit", thread: threadGPU, write: true, timeout: readTime},
	OpHealth:            {verb: "read the health", thread: threadGPU, timeout: profilesTime},
	OpSensors:           {verb: "read the sensors", thread: threadGPU, timeout: readTime},
	OpSetPowerLimit:     {verb: "set the power limit", thread: threadGPU, write: true, timeout: changeTime},
	OpSetMIGMode:        {verb: "set the MIG mode", thread: threadGPU, write: true, timeout: modeTime},
	OpCreateInstance:    {verb: "create instance", thread: threadGPU, write: true, timeout: changeTime},
	OpCompleteInstance:  {verb: "complete instance", thread: threadGPU, write: true, timeout: changeTime},
	OpDestroyInstance:   {verb: "destroy instance", thread: threadGPU, write: true, timeout: changeTime},
	OpSetComputeMode:    {verb: "set the compute mode", thread: threadGPU, write: true, timeout: changeTime},
	OpEvents:            {verb: "watch events", thread: threadEvents, timeout: noTime},
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
