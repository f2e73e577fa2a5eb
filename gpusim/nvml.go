package gpusim

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Request is one call of the vendor's library as the shim sends it.
type Request struct {
	Func string // with version: "nvmlDeviceGetMemoryInfo_v2"
	Args []uint64
	Text string
}

// Reply is the answer: a return code, and the fields of the results in the order of the vendor's header.
type Reply struct {
	Ret    Ret
	Values []uint64
	Text   string
}

func (r *Reply) put(values ...uint64) Ret {
	r.Values = append(r.Values, values...)
	return Success
}

func (r *Reply) setText(text string) Ret {
	r.Text = text
	return Success
}

// call is one running request. Arguments that were not sent are 0.
type call struct {
	ctx  context.Context
	c    *Client
	name string // canonical
	args [8]uint64
	text string
	out  *Reply
}

// on makes the call on a GPU or MIG device: the first argument is its handle.
func (q *call) on(body func(t target) Ret) Ret {
	return q.c.at(q.ctx, q.name, Handle(q.args[0]), body, kindGPU, kindMIG)
}

// gpu makes the call on a GPU, not on a MIG device.
func (q *call) gpu(body func(t target) Ret) Ret {
	return q.c.at(q.ctx, q.name, Handle(q.args[0]), body, kindGPU)
}

// admin makes the call on a GPU, only for privileged callers.
func (q *call) admin(body func(t target) Ret) Ret {
	return q.gpu(func(t target) Ret {
		if !q.c.admin {
			return NoPermission
		}
		return body(t)
	})
}

// mig makes the call on a GPU in MIG mode, only for privileged callers.
func (q *call) mig(body func(t target) Ret) Ret {
	return q.admin(func(t target) Ret {
		if !t.g.migCurrent {
			return NotSupported
		}
		return body(t)
	})
}

// gi makes the call on a GPU instance, ci on a compute instance, both for privileged callers.
func (q *call) gi(body func(t target) Ret) Ret { return q.instance(kindGI, body) }
func (q *call) ci(body func(t target) Ret) Ret { return q.instance(kindCI, body) }

func (q *call) instance(k kind, body func(t target) Ret) Ret {
	return q.c.at(q.ctx, q.name, Handle(q.args[0]), func(t target) Ret {
		if !q.c.admin {
			return NoPermission
		}
		return body(t)
	}, k)
}

// node makes the call on the whole node.
func (q *call) node(body func(n *Node) Ret) Ret {
	return q.c.call(q.ctx, q.name, nil, func() Ret { return body(q.c.node) })
}

func (q *call) u32(i int) uint32 { return uint32(q.args[i]) }

// Call answers one request. It blocks as long as the virtual hardware takes.
func (c *Client) Call(ctx context.Context, req Request) Reply {
	var out Reply
	q := &call{ctx: ctx, c: c, name: canonical(req.Func), text: req.Text, out: &out}
	copy(q.args[:], req.Args)
	if strings.HasSuffix(q.name, "GetFieldValues") {
		out.Ret = q.fields(req.Args)
	} else if q.name == "GpmMetricsGet" {
		out.Ret = q.metrics(req.Args)
	} else {
		out.Ret = q.dispatch()
	}
	if out.Ret != Success && q.name != "DeviceSetMigMode" {
		out.Values, out.Text = nil, ""
	}
	return out
}

func (q *call) dispatch() Ret {
	switch q.name {
	case "Init":
		return q.c.init(q.ctx, q.args[0])
	case "Shutdown":
		return q.node(func(*Node) Ret { return q.c.shutdownLocked() })
	case "EventSetWait":
		return q.waitEvent()
	}
	for _, family := range []func() (Ret, bool){q.system, q.device, q.profiles, q.instances, q.events, q.use} {
		if ret, ok := family(); ok {
			return ret
		}
	}
	return q.node(func(*Node) Ret { return FunctionNotFound })
}

// initWithoutGPUs is the flag with which initialisation succeeds on a node without GPUs.
const initWithoutGPUs = 1

// init is nvmlInit: the answer of the kernel module to the library.
func (c *Client) init(ctx context.Context, flags uint64) Ret {
	return c.call(ctx, "Init", nil, func() Ret {
		switch {
		case c.node.cfg.State == DriverAbsent:
			return DriverNotLoaded
		case c.node.mismatchLocked():
			return VersionMismatch
		}
		if len(c.node.devices) == 0 && flags&initWithoutGPUs == 0 {
			return GPUNotFound
		}
		c.inits++
		return Success
	})
}

// shutdownLocked closes the GPUs after the last initialisation is shut down.
func (c *Client) shutdownLocked() Ret {
	if c.inits--; c.inits == 0 {
		c.opened = map[int]bool{}
	}
	return Success
}

// nvmlVersion returns the library version for a driver version: the CUDA major version and the driver version.
func (cfg Config) nvmlVersion() string {
	return fmt.Sprintf("%d.%s", cfg.CUDAVersion/1000, cfg.DriverVersion)
}

func (q *call) system() (Ret, bool) {
	switch q.name {
	case "SystemGetDriverVersion":
		return q.node(func(n *Node) Ret { return q.out.setText(n.cfg.DriverVersion) }), true
	case "SystemGetNVMLVersion":
		return q.node(func(n *Node) Ret { return q.out.setText(n.cfg.nvmlVersion()) }), true
	case "SystemGetCudaDriverVersion":
		return q.node(func(n *Node) Ret { return q.out.put(uint64(n.cfg.CUDAVersion)) }), true
	case "DeviceGetCount":
		return q.node(func(n *Node) Ret { return q.out.put(uint64(len(n.devices))) }), true
	case "DeviceGetHandleByIndex":
		return q.open(func(g *device) bool { return uint64(g.index) == q.args[0] }, InvalidArgument), true
	case "DeviceGetHandleByPciBusId":
		return q.open(func(g *device) bool { return samePCI(g.cfg.PCI, q.text) }, NotFound), true
	case "DeviceGetHandleByUUID":
		if strings.HasPrefix(q.text, "MIG-") {
			return q.openMIG(), true
		}
		return q.open(func(g *device) bool { return string(g.uuid) == q.text }, NotFound), true
	}
	return 0, false
}

// open opens a GPU for the client and returns its handle.
func (q *call) open(is func(*device) bool, missing Ret) Ret {
	var g *device
	q.c.node.mu.Lock()
	for _, d := range q.c.node.devices {
		if is(d) {
			g = d
		}
	}
	q.c.node.mu.Unlock()
	return q.c.call(q.ctx, q.name, g, func() Ret {
		switch {
		case g == nil:
			return missing
		case g.lost:
			return GPUIsLost
		}
		q.c.opened[g.index] = true
		return q.out.put(uint64(g.handleLocked()))
	})
}

func (q *call) openMIG() Ret {
	return q.node(func(n *Node) Ret {
		for _, g := range n.devices {
			for _, ci := range g.migDevicesLocked() {
				if string(ci.uuid) == q.text {
					q.c.opened[g.index] = true
					return q.out.put(uint64(ci.device()))
				}
			}
		}
		return NotFound
	})
}

// Figures without effect on any rule, the same on every board.
const (
	clockMHz       = 1410
	memoryClockMHz = 1593
	computeDefault = 0
	computeNone    = 2
	computeOne     = 3
)

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// readers are the calls that only read one GPU, by name.
func readers() map[string]func(q *call, t target) Ret {
	is := func(value uint64) func(*call, target) Ret {
		return func(q *call, _ target) Ret { return q.out.put(value) }
	}
	display := func(q *call, t target) Ret { return q.out.put(flag(t.g.cfg.Display)) }
	all := map[string]func(q *call, t target) Ret{
		"DeviceGetIndex":            func(q *call, t target) Ret { return q.out.put(uint64(t.g.index)) },
		"DeviceGetMinorNumber":      func(q *call, t target) Ret { return q.out.put(uint64(t.g.minor)) },
		"DeviceGetPersistenceMode":  func(q *call, t target) Ret { return q.out.put(flag(t.g.persistence)) },
		"DeviceGetDisplayMode":      display,
		"DeviceGetDisplayActive":    display,
		"DeviceGetComputeMode":      func(q *call, t target) Ret { return q.out.put(t.g.modeLocked()) },
		"DeviceGetPerformanceState": is(0),
		"DeviceGetArchitecture": func(q *call, t target) Ret {
			return q.out.put(map[string]uint64{Ampere: 7, Hopper: 9, Blackwell: 10}[t.g.model.Architecture])
		},
		"DeviceGetCudaComputeCapability": func(q *call, t target) Ret {
			return q.out.put(map[string]uint64{Ampere: 8, Hopper: 9, Blackwell: 10}[t.g.model.Architecture], 0)
		},
		"DeviceGetPciInfo": func(q *call, t target) Ret {
			return q.pci(t.g.cfg.PCI, t.g.model.PCIDevice, t.g.model.PCISubsystem)
		},
		"DeviceGetNvLinkState":            (*call).linkState,
		"DeviceGetNvLinkRemoteDeviceType": (*call).linkKind,
		"DeviceGetNvLinkRemotePciInfo":    (*call).linkPCI,
		"DeviceGetMigMode": func(q *call, t target) Ret {
			if t.g.model.Grid == 0 {
				return NotSupported
			}
			return q.out.put(flag(t.g.migCurrent), flag(t.g.migPending))
		},
		"DeviceGetMaxMigDeviceCount": func(q *call, t target) Ret {
			if !t.g.migCurrent {
				return q.out.put(0)
			}
			return q.out.put(uint64(t.g.maxInstances()))
		},
		"DeviceGetSupportedEventTypes": func(q *call, t target) Ret { return q.out.put(t.g.supportedEvents()) },
		"DeviceGetMigDeviceHandleByIndex": func(q *call, t target) Ret {
			switch devices := t.g.migDevicesLocked(); {
			case !t.g.migCurrent:
				return NotSupported
			case q.args[1] >= uint64(t.g.maxInstances()):
				return InvalidArgument
			case q.args[1] >= uint64(len(devices)):
				return NotFound
			default:
				return q.out.put(uint64(devices[q.args[1]].device()))
			}
		},
	}
	maps.Copy(all, healthReaders())
	maps.Copy(all, clockReaders())
	return all
}

// pci answers with a PCI address and the ids of the device.
func (q *call) pci(address string, id, subsystem uint32) Ret {
	var domain, bus, dev, fn uint64
	_, _ = fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &dev, &fn)
	q.out.setText(fmt.Sprintf("%08X:%02X:%02X.%X", domain, bus, dev, fn))
	return q.out.put(domain, bus, dev, uint64(id), uint64(subsystem))
}

// device answers calls that read one GPU or MIG device, or set its modes.
func (q *call) device() (Ret, bool) {
	out := q.out
	if read := q.c.node.readers[q.name]; read != nil {
		return q.gpu(func(t target) Ret { return read(q, t) }), true
	}
	switch q.name {
	case "DeviceGetUtilizationRates":
		// Not supported for MIG devices either: the driver does not report their handles as invalid.
		return q.on(func(t target) Ret {
			if t.g.migCurrent {
				return NotSupported
			}
			return out.put(uint64(t.g.engine.Utilization()), 0)
		}), true
	case "DeviceGetProcessUtilization", "DeviceGetProcessesUtilizationInfo":
		return q.on(q.utilization), true
	case "DeviceGetSamples":
		return q.gpu(q.series), true
	case "DeviceGetName":
		return q.on(func(t target) Ret {
			if t.ci != nil {
				return out.setText(t.g.model.Name + " MIG " + t.ci.name())
			}
			return out.setText(t.g.model.Name)
		}), true
	case "DeviceGetUUID":
		return q.on(func(t target) Ret {
			if t.ci != nil {
				return out.setText(string(t.ci.uuid))
			}
			return out.setText(string(t.g.uuid))
		}), true
	case "DeviceIsMigDeviceHandle":
		return q.on(func(t target) Ret {
			if t.ci != nil {
				return out.put(1)
			}
			return out.put(0)
		}), true
	case "DeviceGetDeviceHandleFromMigDeviceHandle", "DeviceGetGpuInstanceId", "DeviceGetComputeInstanceId", "DeviceGetAttributes":
		return q.on(q.migDevice), true
	case "DeviceGetMemoryInfo":
		return q.on(func(t target) Ret {
			m := t.g.visibleLocked(t.gi, q.c.pid)
			return out.put(m.Total, m.Reserved, m.Free, m.Used)
		}), true
	case "DeviceGetComputeRunningProcesses":
		return q.processes(gpu.ComputeProcess), true
	case "DeviceGetGraphicsRunningProcesses":
		return q.processes(gpu.GraphicsProcess), true
	case "DeviceGetMPSComputeRunningProcesses":
		return q.processes(gpu.MPSProcess), true
	case "DeviceSetComputeMode":
		return q.admin(func(t target) Ret { return t.g.setModeLocked(q.args[1]) }), true
	case "DeviceSetPowerManagementLimit":
		return q.admin(func(t target) Ret { return t.g.setPowerLocked(q.args[1]) }), true
	case "DeviceSetPersistenceMode":
		return q.admin(func(t target) Ret { t.g.persistence = q.args[1] != 0; return Success }), true
	case "DeviceSetMemoryLimits":
		return q.admin(q.setMemoryLimits), true
	case "DeviceGetMemoryLimits":
		return q.gpu(q.getMemoryLimits), true
	case "DeviceSetMigMode":
		return q.admin(func(t target) Ret {
			if q.args[1] > 1 {
				return InvalidArgument
			}
			activation, ret := t.g.setMIGLocked(q.args[1] == 1, q.c.pid)
			out.put(uint64(activation))
			return ret
		}), true
	}
	return 0, false
}

// modeLocked and setModeLocked convert the compute mode.
func (g *device) modeLocked() uint64 {
	switch g.mode {
	case gpu.ComputeExclusiveProcess:
		return computeOne
	case gpu.ComputeProhibited:
		return computeNone
	}
	return computeDefault
}

func (g *device) setModeLocked(mode uint64) Ret {
	switch mode {
	case computeDefault:
		g.mode = gpu.ComputeDefault
	case computeOne:
		g.mode = gpu.ComputeExclusiveProcess
	case computeNone:
		g.mode = gpu.ComputeProhibited
	default:
		return InvalidArgument
	}
	return Success
}

func (g *device) supportedEvents() uint64 {
	mask := uint64(eventXID | eventSingleECC | eventDoubleECC | eventUnavailable | eventRecovery)
	if g.model.Grid > 0 {
		mask |= eventMIGConfig
	}
	return mask
}

// maxInstances is the largest number of MIG devices of the board.
func (g *device) maxInstances() uint32 {
	most := uint32(0)
	for _, p := range g.model.Profiles {
		most = max(most, p.Max)
	}
	return most
}

// migDevice answers calls that only a MIG device supports.
func (q *call) migDevice(t target) Ret {
	if t.ci == nil {
		if q.name == "DeviceGetAttributes" {
			return NotSupported
		}
		return InvalidArgument
	}
	switch q.name {
	case "DeviceGetGpuInstanceId":
		return q.out.put(uint64(t.gi.id))
	case "DeviceGetComputeInstanceId":
		if t.g.node.cfg.ComputeReports.anonymous() {
			return NotSupported
		}
		return q.out.put(uint64(t.ci.id))
	case "DeviceGetAttributes":
		p := t.gi.profile
		return q.out.put(uint64(t.ci.sms()), uint64(p.Copy), uint64(p.Decoders), 0, uint64(p.JPEG), uint64(p.OFA),
			uint64(p.Slices), uint64(t.ci.profile.slices), p.MemoryMiB)
	}
	return q.out.put(uint64(t.g.handleLocked()))
}

// processes answers one process list. The list of a whole GPU in MIG mode is for privileged callers.
func (q *call) processes(k gpu.ProcessKind) Ret {
	return q.on(func(t target) Ret {
		if t.ci == nil && t.g.migCurrent && !q.c.admin {
			return NoPermission
		}
		for _, p := range t.g.processesLocked(k, t.ci) {
			memory := ^uint64(0)
			if p.Memory != nil {
				memory = *p.Memory
			}
			q.out.put(uint64(p.PID), memory, uint64(opt(p.GI)), uint64(opt(p.CI)))
		}
		return Success
	})
}

// The supported fields.
const (
	fieldMemoryHeat = 82
	fieldResetless  = 184
	fieldMIGQueries = 199
	fieldRecovery   = 230
	typeUint        = 1
)

// fields answers a list of field ids with return code, type and value of each.
func (q *call) fields(args []uint64) Ret {
	return q.on(func(t target) Ret {
		for _, id := range args[min(1, len(args)):] {
			ret, value := Success, uint64(0)
			switch id {
			case fieldResetless:
				if t.g.model.Grid == 0 {
					ret = NotSupported
				} else if t.g.model.Resetless {
					value = 1
				}
			case fieldMIGQueries:
				if t.g.node.cfg.profilesWithoutMIG() {
					value = 1
				}
			case fieldMemoryHeat:
				value = uint64(t.g.sensors.memoryTemperature)
				if !t.g.model.Sensors.Memory {
					ret, value = NotSupported, 0
				}
			case fieldRecovery:
				value = uint64(t.g.recovery)
				if t.g.node.cfg.branch() < recoveryBranch {
					ret, value = NotSupported, 0
				}
			default:
				ret = NotSupported
			}
			q.out.put(uint64(ret), typeUint, value)
		}
		return Success
	})
}

// events answers the calls on event sets, except the wait, which does not hold a callLock.
func (q *call) events() (Ret, bool) {
	switch q.name {
	case "EventSetCreate":
		return q.node(func(*Node) Ret { return q.out.put(uint64(q.c.newEventSetLocked())) }), true
	case "EventSetFree":
		return q.node(func(n *Node) Ret {
			s := q.c.eventSetLocked(Handle(q.args[0]))
			if s == nil {
				return InvalidArgument
			}
			s.closeLocked()
			delete(n.events, Handle(q.args[0]).generation())
			return Success
		}), true
	case "DeviceRegisterEvents":
		return q.gpu(func(t target) Ret {
			s := q.c.eventSetLocked(Handle(q.args[2]))
			switch {
			case s == nil:
				return InvalidArgument
			case q.args[1]&^t.g.supportedEvents() != 0:
				return NotSupported
			}
			s.masks[t.g.index] |= q.args[1]
			return Success
		}), true
	}
	return 0, false
}

func (q *call) waitEvent() Ret {
	if ret := q.node(func(*Node) Ret { return Success }); ret != Success {
		return ret
	}
	e, ret := q.c.wait(q.ctx, Handle(q.args[0]), time.Duration(q.args[1])*time.Millisecond)
	if ret == Success {
		q.out.put(uint64(e.Device), e.Type, e.Data, uint64(e.GI), uint64(e.CI))
	}
	return ret
}
