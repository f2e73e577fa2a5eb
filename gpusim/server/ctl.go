package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/nodefile"
)

// Command is one command to the node: one JSON line, answered by one Result.
type Command struct {
	Do      string        `json:"do"`
	GPU     string        `json:"gpu,omitempty"`
	Window  time.Duration `json:"window,omitempty"` // status: the window of busy times; 0 since the start
	Fault   *gpusim.Fault `json:"fault,omitempty"`
	ID      int           `json:"id,omitempty"` // fault-clear: the fault, 0 for all
	XID     int           `json:"xid,omitempty"`
	PID     int           `json:"pid,omitempty"`
	Name    string        `json:"name,omitempty"`
	Unload  bool          `json:"unload,omitempty"` // module: not load
	Call    string        `json:"call,omitempty"`   // latency: the calls
	Latency time.Duration `json:"latency,omitempty"`
	Force   bool          `json:"force,omitempty"`
	Sensor  string        `json:"sensor,omitempty"` // sensor: its name
	Values  []string      `json:"values,omitempty"`
	Version string        `json:"version,omitempty"` // driver-install; with Values: names of profiles, OLD=NEW
	Other   string        `json:"other,omitempty"`   // gpu-swap: the other GPU
	Model   string        `json:"model,omitempty"`   // gpu-add: with PCI, the address
	PCI     string        `json:"pci,omitempty"`
}

// The values of Command.Do.
const (
	DoStatus       = "status"
	DoFaultAdd     = "fault-add"
	DoFaultList    = "fault-list"
	DoFaultClear   = "fault-clear"
	DoReboot       = "reboot"
	DoDriverReload = "driver-reload"
	DoDriverUnload = "driver-unload"
	DoDriverLoad   = "driver-load"
	DoInstall      = "driver-install"
	DoRemoveGPU    = "gpu-remove"
	DoAddGPU       = "gpu-add"
	DoReplaceGPU   = "gpu-replace"
	DoSwapGPUs     = "gpu-swap"
	DoReset        = "reset"
	DoXID          = "xid"
	DoLatency      = "latency"
	DoSensor       = "sensor"
	DoModule       = "module"
)

// Result is the result of a command.
type Result struct {
	Error   string                   `json:"error,omitempty"`
	Status  *Status                  `json:"status,omitempty"`
	Faults  []gpusim.Fault           `json:"faults,omitempty"`
	ID      int                      `json:"id,omitempty"`
	Latency map[string]time.Duration `json:"latency,omitempty"`
	UUID    string                   `json:"uuid,omitempty"` // gpu-replace: of the new board
}

// Status is the true state of the node with its counters and faults.
type Status struct {
	gpusim.View
	Counters gpusim.Counters `json:"counters"`
	Faults   []gpusim.Fault  `json:"faults,omitempty"`
}

// ctl serves one control connection.
func (s *Server) ctl(ctx context.Context, conn *net.UnixConn) {
	cred, err := peer(conn)
	if err != nil {
		s.log.Error("control connection refused", "error", err)
		return
	}
	in := bufio.NewScanner(conn)
	in.Buffer(make([]byte, 64<<10), 64<<10)
	for in.Scan() {
		var o Command
		var a Result
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			a.Error = fmt.Sprintf("cannot read command: %v", err)
		} else {
			a = s.execute(o, int(cred.Pid), conn)
		}
		if err := json.NewEncoder(conn).Encode(a); err != nil {
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (s *Server) execute(o Command, caller int, from net.Conn) (a Result) {
	var err error
	switch o.Do {
	case DoStatus:
		a.Status = &Status{View: s.node.View(o.Window), Counters: s.node.Counters(), Faults: s.node.Faults()}
	case DoFaultAdd:
		if o.Fault == nil {
			err = fmt.Errorf("cannot add fault: none was given")
			break
		}
		a.ID, err = s.node.AddFault(*o.Fault)
	case DoFaultList:
		a.Faults = s.node.Faults()
	case DoFaultClear:
		s.node.ClearFaults(o.ID)
	case DoReboot:
		s.node.Reboot()
		// The processes still run, but their connections end.
		s.closeAll(from)
	case DoDriverReload:
		if err = s.node.ReloadDriver(o.Force); err == nil {
			s.closeAll(from)
		}
	case DoDriverUnload:
		if err = s.node.UnloadDriver(o.Force); err == nil {
			s.closeAll(from)
		}
	case DoDriverLoad:
		err = s.node.LoadDriver()
	case DoInstall:
		names := map[string]string{}
		for _, v := range o.Values {
			before, after, ok := strings.Cut(v, "=")
			if !ok {
				err = fmt.Errorf("cannot read %q: a profile of another name is OLD=NEW, as in 1g.5gb=1g.6gb", v)
			}
			names[before] = after
		}
		if err == nil {
			s.node.InstallDriver(o.Version, names)
		}
	case DoRemoveGPU:
		err = s.node.RemoveGPU(o.GPU)
	case DoAddGPU:
		var m *gpusim.Model
		if m, err = nodefile.Model(o.Model); err == nil {
			err = s.node.AddGPU(gpusim.GPUConfig{Model: m, PCI: o.PCI})
		}
	case DoReplaceGPU:
		var id gpu.UUID
		id, err = s.node.ReplaceGPU(o.GPU)
		a.UUID = string(id)
	case DoSwapGPUs:
		err = s.node.SwapGPUs(o.GPU, o.Other)
	case DoReset:
		err = s.node.ResetGPU(o.GPU, caller)
	case DoXID:
		err = s.node.XID(o.GPU, o.XID, o.PID, o.Name)
	case DoSensor:
		err = s.node.SetSensor(o.GPU, o.Sensor, o.Values)
	case DoModule:
		err = s.node.SetModule(o.Name, !o.Unload)
	case DoLatency:
		if o.Call != "" {
			err = s.node.SetLatency(o.Call, o.Latency)
		}
		a.Latency = s.node.Latency()
	default:
		err = fmt.Errorf("cannot do %q: unknown command", o.Do)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// Control sends one command to the node below a host root and waits for the result.
func Control(ctx context.Context, root string, o Command) (Result, error) {
	conn, err := dial(ctx, root, CtlSocket)
	if err != nil {
		return Result{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(o); err != nil {
		return Result{}, fmt.Errorf("cannot send the command to the virtual node: %w", err)
	}
	var a Result
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return Result{}, fmt.Errorf("cannot read the result of the virtual node: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s", a.Error)
	}
	return a, nil
}

// dial connects to a socket below a host root through the directory's descriptor: a socket address has at most 107
// characters.
func dial(ctx context.Context, root, name string) (net.Conn, error) {
	dir, err := os.Open(Dir(root))
	if err != nil {
		return nil, fmt.Errorf("cannot reach virtual node: %w", err)
	}
	defer dir.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name))
	if err != nil {
		return nil, fmt.Errorf("cannot reach virtual node: %w", err)
	}
	return conn, nil
}
