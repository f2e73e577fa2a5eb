package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim/server"
	"github.com/gpushare/gpushare/test/harness"
)

// observedGPU is one GPU as another program reports it.
type observedGPU struct {
	index             int
	uuid, pci, model  string
	totalMiB, usedMiB float64
	mig               bool
	computeMode       string // "Default", "Exclusive_Process", …
	driver            string
	computeProcesses  int // number of compute processes
}

// host is the host of the GPUs: this host, or a virtual node.
type host interface {
	// open checks that there is a GPU. A skipped error names what is missing.
	open(ctx context.Context) error
	// observe reads the GPUs with another program; nil when there is none.
	observe(ctx context.Context) ([]observedGPU, error)
	// program is a CUDA program that allocates memory and, if load is set, keeps the GPU busy. All values are in MiB;
	// grow is MiB per second.
	program(memory, grow, most, load int) []string
	// amount returns how much a job of program has done so far, in a unit of the host.
	amount(ctx context.Context, j *harness.Job) (float64, error)
	// latency measures the duration of driver calls on a GPU.
	latency(ctx context.Context, uuid string) (string, error)
	// workload is a program that keeps kernels queued on a GPU.
	workload(ctx context.Context, uuid string, l load) (workload, error)
	// fill is a program that allocates memory as fast as it can, up to a number of MiB; nil when there is none.
	fill(uuid string, most int) (argv, env []string)
	// driverLibrary is how a program that reads the driver directly finds it.
	driverLibrary() (args, env []string)
	name() string
	close() error
}

// realHost is this host, with nvidia-smi for comparison.
type realHost struct {
	dir         string
	alloc, work string // the CUDA programs; empty without a compiler

	progressDir string // of the files in which the GPU counts finished kernels
	files       int
	measured    map[time.Duration]int // iterations of a kernel
}

func (*realHost) name() string { return "real hardware" }

func (h *realHost) open(ctx context.Context) error {
	if _, err := exec.LookPath("nvidia-smi"); err != nil {
		return skipped("nvidia-smi is not on the PATH: the NVIDIA driver is probably not installed")
	}
	out, err := output(ctx, nil, "nvidia-smi", "-L")
	if err != nil || !strings.Contains(out, "GPU ") {
		return skipped(fmt.Sprintf("nvidia-smi finds no GPU: %s %v", strings.TrimSpace(out), err))
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		return nil // Everything except the load can be tested: choose reports it then.
	}
	for _, name := range []string{"alloc", "work"} {
		if out, err := output(ctx, nil, "gcc", "-O2", "-o", filepath.Join(h.dir, name), "test/hwtest/cuda/"+name+".c", "-ldl"); err != nil {
			return fmt.Errorf("cannot build the CUDA program: %w: %s", err, out)
		}
	}
	h.alloc, h.work, h.measured = filepath.Join(h.dir, "alloc"), filepath.Join(h.dir, "work"), map[time.Duration]int{}
	if h.progressDir, err = os.MkdirTemp(sharedMemory, "gpushare-hw-"); err != nil {
		return fmt.Errorf("cannot create a directory in memory: %w", err)
	}
	return nil
}

func (h *realHost) close() error {
	if h.progressDir == "" {
		return nil
	}
	return os.RemoveAll(h.progressDir)
}

func (h *realHost) observe(ctx context.Context) ([]observedGPU, error) {
	out, err := output(ctx, nil, "nvidia-smi", "--format=csv,noheader,nounits",
		"--query-gpu=index,uuid,pci.bus_id,name,memory.total,memory.used,mig.mode.current,compute_mode,driver_version")
	if err != nil {
		return nil, fmt.Errorf("cannot run nvidia-smi: %w", err)
	}
	apps, err := output(ctx, nil, "nvidia-smi", "--format=csv,noheader", "--query-compute-apps=gpu_uuid,pid")
	if err != nil {
		return nil, fmt.Errorf("cannot read the processes of nvidia-smi: %w", err)
	}
	return parseSMI(out, apps)
}

// parseSMI parses the two outputs of nvidia-smi.
func parseSMI(gpus, apps string) ([]observedGPU, error) {
	var list []observedGPU
	for _, line := range strings.Split(strings.TrimSpace(gpus), "\n") {
		f := strings.Split(line, ", ")
		if len(f) != 9 {
			return nil, fmt.Errorf("cannot parse the line %q of nvidia-smi", line)
		}
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		index, err := strconv.Atoi(f[0])
		if err != nil {
			return nil, fmt.Errorf("cannot parse the index %q of nvidia-smi", f[0])
		}
		total, err1 := strconv.ParseFloat(f[4], 64)
		used, err2 := strconv.ParseFloat(f[5], 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("cannot parse the memory of nvidia-smi: %w", err)
		}
		pci, _ := api.CanonicalPCI(f[2])
		list = append(list, observedGPU{
			index: index, uuid: f[1], pci: pci, model: f[3], totalMiB: total, usedMiB: used, mig: f[6] == "Enabled",
			computeMode: f[7], driver: f[8], computeProcesses: strings.Count(apps, f[1]),
		})
	}
	return list, nil
}

func (h *realHost) program(memory, grow, most, load int) []string {
	if h.alloc == "" {
		return nil
	}
	argv := []string{h.alloc, "--memory", strconv.Itoa(memory)}
	if grow > 0 {
		argv = append(argv, "--grow", strconv.Itoa(grow), "--max", strconv.Itoa(most))
	}
	if load > 0 {
		argv = append(argv, "--load", strconv.Itoa(load))
	}
	return argv
}

func (*realHost) driverLibrary() (args, env []string) { return nil, nil }

func (h *realHost) fill(uuid string, most int) (argv, env []string) {
	if h.alloc == "" {
		return nil, nil
	}
	return []string{h.alloc, "--memory", "64", "--max", strconv.Itoa(most)}, []string{"CUDA_VISIBLE_DEVICES=" + uuid}
}

func (*realHost) amount(_ context.Context, j *harness.Job) (float64, error) {
	return lastDone(j.Output())
}

// lastDone parses the last complete "done N allocated M" line.
func lastDone(out string) (float64, error) {
	out = out[:strings.LastIndexByte(out, '\n')+1]
	i := strings.LastIndex(out, "done ")
	if i < 0 {
		return 0, fmt.Errorf("the program has not printed its work: %s", out)
	}
	var n float64
	if _, err := fmt.Sscanf(out[i:], "done %f", &n); err != nil {
		return 0, fmt.Errorf("cannot parse the work of the program: %w", err)
	}
	return n, nil
}

func (*realHost) latency(ctx context.Context, uuid string) (string, error) {
	return output(ctx, []string{"CGO_ENABLED=1"}, "go", "run", "./test/hwtest/latency", "-gpu", uuid)
}

// virtualHost is a virtual node. It only shows that the test works.
type virtualHost struct{ node *harness.Node }

func (*virtualHost) name() string {
	return "a VIRTUAL node: the figures below mean nothing"
}

func (h *virtualHost) open(ctx context.Context) error { return h.node.StartSim(ctx) }

func (*virtualHost) observe(context.Context) ([]observedGPU, error) { return nil, nil }

func (h *virtualHost) program(memory, grow, _, load int) []string {
	argv := h.node.Burn("--memory", fmt.Sprintf("%dMiB", memory))
	if grow > 0 {
		argv = append(argv, "--grow", fmt.Sprintf("%dMiB/s", grow))
	}
	if load == 0 {
		return append(argv, "--hold")
	}
	return append(argv, "--kernel", "5ms", "--queue", "4")
}

func (h *virtualHost) amount(ctx context.Context, j *harness.Job) (float64, error) {
	return h.busy(ctx, j.PID())
}

// busy is the GPU time of a process in seconds, by the virtual GPUs' own count.
func (h *virtualHost) busy(ctx context.Context, pid int) (float64, error) {
	truth, err := server.Control(ctx, h.node.Root(), server.Command{Do: server.DoStatus})
	if err != nil {
		return 0, err
	}
	for i := range truth.Status.GPUs {
		if v, ok := truth.Status.GPUs[i].Busy[pid]; ok {
			return v, nil
		}
	}
	return 0, fmt.Errorf("pid %d is on no GPU", pid)
}

func (h *virtualHost) close() error { return nil }

func (h *virtualHost) driverLibrary() (args, env []string) {
	args = []string{"-host-root", h.node.Root(), "-library", filepath.Join(h.node.Root(), "usr/lib/libnvidia-ml.so.1")}
	return args, []string{"GPUSIM_ROOT=" + h.node.Root()}
}

func (h *virtualHost) fill(uuid string, _ int) (argv, env []string) {
	return h.node.Burn("--gpu", uuid, "--memory", "64MiB", "--grow", "8GiB/s", "--hold"), []string{"GPUSIM_ROOT=" + h.node.Root()}
}

func (h *virtualHost) latency(ctx context.Context, uuid string) (string, error) {
	args, env := h.driverLibrary()
	return output(ctx, append(env, "CGO_ENABLED=1"), append([]string{"go", "run", "./test/hwtest/latency", "-gpu", uuid}, args...)...)
}

// output runs a command and returns its standard output.
func output(ctx context.Context, env []string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", filepath.Base(argv[0]), err, bytes.TrimSpace(errb.Bytes()))
	}
	return out.String(), nil
}
