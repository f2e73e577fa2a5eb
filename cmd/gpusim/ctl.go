package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/server"
)

var ctlUsage = `usage: gpusim ctl --root DIR COMMAND

  status [--window 10s]                    the true state of the node, as JSON
  fault add CALL DO [OPTION …]             CALL: a name such as DeviceCreateGpuInstance*, any,
                                           or write for every call that changes the node
                                           DO: fail | hang | lose
                                           --gpu GPU --nth N --times N (negative: no limit) --code N --after --reads-answer
  fault list | fault clear [ID]
  reboot
  driver-reload [--force]
  driver-unload [--force] | driver-load    the kernel module
  module load|unload NAME                  nvidia-uvm, nvidia-modeset or nvidia-drm
  driver-install VERSION [OLD=NEW …]       the library at once, the module at its next load; OLD=NEW: it names
                                           a profile differently, as in 1g.5gb=1g.6gb
  gpu-remove GPU                           it is lost, and not found by the next load of the driver
  gpu-add MODEL PCI | gpu-replace GPU | gpu-swap GPU GPU
                                           found by the next load of the driver
  reset GPU
  xid GPU NUMBER [--pid PID] [--name NAME]
  latency [CALL DURATION]
  sensor GPU SENSOR VALUE …                a sensor or an error counter of a GPU:
` + sensors + `
GPU is a UUID, a PCI address or an index.
`

// sensors are the lines of the sensors below their command.
var sensors = "    " + strings.ReplaceAll(gpusim.SensorUsage, "\n", "\n    ") + "\n"

// commandTimeout bounds a command: none of them waits for hardware.
const commandTimeout = 30 * time.Second

func ctl(ctx context.Context, args, env []string, std stdio) int {
	f := flags("ctl", std)
	f.Usage = func() { fmt.Fprint(std.err, ctlUsage) }
	root := f.String("root", lookup(env, "GPUSIM_ROOT"), "")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	if f.NArg() > 0 && f.Arg(0) == "help" {
		fmt.Fprint(std.out, ctlUsage)
		return exitOK
	}
	command, err := parseCommand(f.Args(), std)
	if err != nil {
		fmt.Fprintf(std.err, "gpusim ctl: %v\n", err)
		return exitUsage
	}
	if *root == "" {
		fmt.Fprintln(std.err, "gpusim ctl: --root is required")
		return exitUsage
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	answer, err := server.Control(ctx, *root, command)
	if err != nil {
		return fail(std, err)
	}
	var show any
	switch command.Do {
	case server.DoStatus:
		show = answer.Status
	case server.DoFaultList:
		show = answer.Faults
	case server.DoFaultAdd:
		show = answer.ID
	case server.DoReplaceGPU:
		show = answer.UUID
	case server.DoLatency:
		show = formatLatency(answer.Latency)
	default:
		return exitOK
	}
	e := json.NewEncoder(std.out)
	e.SetIndent("", "  ")
	if err := e.Encode(show); err != nil {
		return fail(std, err)
	}
	return exitOK
}

func formatLatency(latency map[string]time.Duration) map[string]string {
	out := map[string]string{}
	for call, d := range latency {
		out[call] = d.String()
	}
	return out
}

var errCommand = errors.New("unknown command: see gpusim ctl help")

// parseCommand parses a command. Options may be before and after its words.
func parseCommand(args []string, std stdio) (server.Command, error) {
	f := flags("ctl", std)
	f.Usage = func() {}
	var o server.Command
	var fault gpusim.Fault
	var code int
	f.DurationVar(&o.Window, "window", 0, "")
	f.StringVar(&fault.GPU, "gpu", "", "")
	f.IntVar(&fault.Nth, "nth", 1, "")
	f.IntVar(&fault.Times, "times", 1, "")
	f.IntVar(&code, "code", 0, "")
	f.BoolVar(&fault.After, "after", false, "")
	f.BoolVar(&fault.ReadsAnswer, "reads-answer", false, "")
	f.BoolVar(&o.Force, "force", false, "")
	f.IntVar(&o.PID, "pid", 0, "")
	f.StringVar(&o.Name, "name", "", "")
	var words []string
	for rest := args; len(rest) > 0; {
		if err := f.Parse(rest); err != nil {
			return o, err
		}
		if rest = f.Args(); len(rest) > 0 {
			words, rest = append(words, rest[0]), rest[1:]
		}
	}
	var err error
	switch key := strings.Join(words[:min(2, len(words))], " "); {
	case key == "status":
		o.Do = server.DoStatus
	case key == "fault add" && len(words) == 4:
		fault.Call, fault.Do, fault.Code = words[2], words[3], gpusim.Ret(code)
		o.Do, o.Fault = server.DoFaultAdd, &fault
	case key == "fault list" && len(words) == 2:
		o.Do = server.DoFaultList
	case key == "fault clear" && len(words) <= 3:
		o.Do = server.DoFaultClear
		if len(words) == 3 {
			o.ID, err = strconv.Atoi(words[2])
		}
	case key == "reboot":
		o.Do = server.DoReboot
	case key == "driver-reload":
		o.Do = server.DoDriverReload
	case key == server.DoDriverUnload:
		o.Do = server.DoDriverUnload
	case key == server.DoDriverLoad:
		o.Do = server.DoDriverLoad
	case len(words) == 3 && (key == "module load" || key == "module unload"):
		o.Do, o.Name, o.Unload = server.DoModule, words[2], words[1] == "unload"
	case len(words) >= 2 && words[0] == server.DoInstall:
		o.Do, o.Version, o.Values = server.DoInstall, words[1], words[2:]
	case len(words) == 2 && (words[0] == server.DoRemoveGPU || words[0] == server.DoReplaceGPU):
		o.Do, o.GPU = words[0], words[1]
	case len(words) == 3 && words[0] == server.DoAddGPU:
		o.Do, o.Model, o.PCI = server.DoAddGPU, words[1], words[2]
	case len(words) == 3 && words[0] == server.DoSwapGPUs:
		o.Do, o.GPU, o.Other = server.DoSwapGPUs, words[1], words[2]
	case len(words) == 2 && words[0] == "reset":
		o.Do, o.GPU = server.DoReset, words[1]
	case len(words) == 3 && words[0] == "xid":
		o.Do, o.GPU = server.DoXID, words[1]
		o.XID, err = strconv.Atoi(words[2])
	case len(words) >= 4 && words[0] == "sensor":
		o.Do, o.GPU, o.Sensor, o.Values = server.DoSensor, words[1], words[2], words[3:]
	case key == "latency":
		o.Do = server.DoLatency
	case len(words) == 3 && words[0] == "latency":
		o.Do, o.Call = server.DoLatency, words[1]
		o.Latency, err = time.ParseDuration(words[2])
	default:
		err = errCommand
	}
	if err != nil && !errors.Is(err, errCommand) {
		err = fmt.Errorf("cannot parse command: %w", err)
	}
	return o, err
}

// smi replaces nvidia-smi for --gpu-reset [-i GPU], which the library does not offer, and for -L.
func smi(ctx context.Context, args, env []string, std stdio) int {
	f := flag.NewFlagSet("nvidia-smi", flag.ContinueOnError)
	f.SetOutput(std.err)
	var reset, list bool
	var id string
	f.BoolVar(&reset, "gpu-reset", false, "reset a GPU")
	f.BoolVar(&reset, "r", false, "reset a GPU")
	f.BoolVar(&list, "L", false, "list the GPUs")
	f.BoolVar(&list, "list-gpus", false, "list the GPUs")
	f.StringVar(&id, "i", "", "`GPU`: UUID, PCI address or index")
	f.StringVar(&id, "id", "", "`GPU`: UUID, PCI address or index")
	if err := f.Parse(args); err != nil {
		return exitUsage
	}
	root, err := nodeOf(env)
	if err != nil {
		return fail(std, err)
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	answer, err := server.Control(ctx, root, server.Command{Do: server.DoStatus})
	if err != nil {
		fmt.Fprintln(std.out, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
		return 9
	}
	switch {
	case list:
		for _, g := range answer.Status.GPUs {
			fmt.Fprintf(std.out, "GPU %d: %s (UUID: %s)\n", g.Identity.Index, g.Identity.Model, g.Identity.UUID)
		}
		return exitOK
	case !reset:
		fmt.Fprintln(std.err, "nvidia-smi: this replacement only supports --gpu-reset and -L")
		return exitUsage
	}
	code := exitOK
	for _, g := range answer.Status.GPUs {
		if id != "" && id != string(g.Identity.UUID) && id != g.Identity.PCI && id != strconv.Itoa(g.Identity.Index) {
			continue
		}
		if _, err := server.Control(ctx, root, server.Command{Do: server.DoReset, GPU: string(g.Identity.UUID)}); err != nil {
			fmt.Fprintf(std.out, "GPU %s is currently in use by another process.\n\n%v\n", g.Identity.PCI, err)
			code = 19
			continue
		}
		fmt.Fprintf(std.out, "GPU %s was successfully reset.\n", g.Identity.PCI)
	}
	return code
}

// nodeOf returns the host root of a tool: from the environment, else from the path of the tool's link.
func nodeOf(env []string) (string, error) {
	if root := lookup(env, "GPUSIM_ROOT"); root != "" {
		return root, nil
	}
	if strings.Contains(os.Args[0], "/") {
		dir, err := filepath.Abs(filepath.Join(filepath.Dir(os.Args[0]), "..", ".."))
		if err == nil {
			return dir, nil
		}
	}
	return "", errors.New("cannot find the virtual node: GPUSIM_ROOT is not set")
}
