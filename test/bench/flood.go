package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/test/flood"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

const (
	floodUsers     = 50
	floodRuns      = 200
	mostUnderFlood = 100.0                 // ms
	firstUser      = 480000                // uid and gid of the first one who floods
	pauseOfRuns    = 50 * time.Millisecond // of a user who is not one of many requests: up to 15 runs a second
	otherUser      = 471214
	gidRed         = 471204 // of those who flood
	gidBlue        = 471203 // of the other user
)

const floodNode = `driver: "580"
gpus:
  - {model: A100-SXM4-40GB, count: 2}
`

const floodSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: timeslice}
  - {select: {index: 1}, mode: timeslice}
tenants:
  - name: red
    members: {groups: [red]}
    grants: [{name: whole, timeslice: {share: 10%, gpu_memory: 1GiB}, gpus: {index: 0}, max_leases: 1}]
  - name: blue
    members: {groups: [blue]}
    grants: [{name: part, timeslice: {share: 30%, gpu_memory: 1GiB}, gpus: {index: 1}}]
`

// floodGetent is a getent(1) that knows the groups of the spec and their members.
var floodGetent = fmt.Sprintf(`#!/bin/sh
db=$1; shift; missing=2
for key; do case $db:$key in
group:red|group:%[1]d) echo 'red:*:%[1]d:'; missing=0 ;;
group:blue|group:%[2]d) echo 'blue:*:%[2]d:'; missing=0 ;;
passwd:other|passwd:%[3]d) echo 'other:*:%[3]d:%[3]d::/:/bin/sh'; missing=0 ;;
initgroups:other) echo 'other %[2]d'; missing=0 ;;
passwd:48????) echo "red$key:*:$key:$key::/:/bin/sh"; missing=0 ;;
passwd:red48????) echo "$key:*:${key#red}:${key#red}::/:/bin/sh"; missing=0 ;;
initgroups:red48????) echo "$key %[1]d"; missing=0 ;;
esac; done; exit $missing
`, gidRed, gidBlue, otherUser)

// burdenEnv has what a process of this program does to the machine instead of a measurement: a socket to flood, or burn.
const burdenEnv = "GPUSHARE_BENCH_BURDEN"

const (
	burn = "burn"
	atIt = "at it"
)

// burden floods a socket, or uses the processor as much as a flood can without a request. It does not return unless that fails.
func burden(what string) error {
	begun := func() { fmt.Println(atIt) }
	if what != burn {
		return flood.Run(what, flood.Mixed, flood.MixedWidth, begun)
	}
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for n := uint64(0); ; n++ { // It does nothing else.
				runtime.KeepAlive(n)
			}
		}()
	}
	begun()
	select {}
}

// flood measures gpushare run of one user: alone, while 50 other users use the processor without a request, and while they flood
// the socket. The second is the control: what the daemon adds is the third without the second. The processor is shared as systemd
// shares it. The one user has a part as large as the daemon's, so that the figures are of the daemon. Then, to see the whole:
// one who starts runs without a pause and so becomes a user of many requests, and one with the part that each of those users has.
func (b *bench) flood(ctx context.Context) (figures []Figure, failed error) {
	if os.Geteuid() != 0 {
		return b.skip("runs under a flood", "root, to become other users")
	}
	cpu, err := newProcessorSlices()
	if errors.Is(err, errNoController) {
		return b.skip("runs under a flood", "the cpu controller of cgroups, of v1 or v2")
	}
	if err != nil {
		return nil, err
	}
	defer func() { failed = errors.Join(failed, cpu.remove()) }()
	dir, err := os.MkdirTemp("", "gpushare-bench-")
	if err != nil {
		return nil, fmt.Errorf("cannot create a directory: %w", err)
	}
	defer os.RemoveAll(dir)
	program, err := floodFiles(dir)
	if err != nil {
		return nil, err
	}
	n := &harness.Node{
		Bin:      b.bin,
		File:     filepath.Join(dir, "node.yaml"),
		Settings: map[string]string{"getent": filepath.Join(dir, "getent")},
	}
	defer func() { failed = errors.Join(failed, n.Close()) }()
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	if err := errors.Join(cpu.toDaemon(n.DaemonPID()), cpu.toPrompt(os.Getpid())); err != nil {
		return nil, err
	}
	if r := n.CLIIn(ctx, floodSpec, "apply", "-f", "-"); r.Code != 0 {
		return nil, fmt.Errorf("cannot apply the spec: %s", r.Err)
	}
	p99 := map[string]float64{}
	const alone, control, flooded = "gpushare run alone", "gpushare run next to 50 users who compute", "gpushare run in a flood by 50 users"
	for _, m := range []struct {
		name, burden string
		equal        bool
		runs         int
		pause        time.Duration
	}{
		{alone, "", false, floodRuns, pauseOfRuns},
		{control, burn, false, floodRuns, pauseOfRuns},
		{flooded, n.Socket(), false, floodRuns, pauseOfRuns},
		{flooded + ", one right after the other", n.Socket(), false, 2 * floodRuns, 0},
		{control + ", with a part like theirs", burn, true, floodRuns / 4, pauseOfRuns},
		{flooded + ", with a part like theirs", n.Socket(), true, floodRuns / 4, pauseOfRuns},
	} {
		if m.equal {
			err = cpu.toUser(otherUser, os.Getpid())
		}
		if err != nil {
			return figures, err
		}
		v, err := runsUnder(ctx, n, cpu, program, m.burden, m.runs, m.pause)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", m.name, err)
		}
		slices.Sort(v)
		var target *float64
		if m.name == flooded {
			target = new(mostUnderFlood)
		}
		p99[m.name] = v[len(v)*99/100]
		figures = append(figures,
			figure(m.name+": median", v[len(v)/2:len(v)/2+1], "ms", "lower", nil),
			figure(m.name+": p99", []float64{p99[m.name]}, "ms", "lower", target),
			figure(m.name+": longest", v[len(v)-1:], "ms", "lower", nil))
	}
	peak, err := peakMiB(n.DaemonPID())
	return append(
		figures,
		lower(
			"gpushare run in a flood by 50 users, p99 without that of the control", max(0, p99[flooded]-p99[control]), "ms",
			mostUnderFlood,
		),
		lower("memory of the daemon in a flood by 50 users, at most", peak, "MiB", 128),
	), err
}

// runsUnder measures runs under a burden, in ms.
func runsUnder(
	ctx context.Context, n *harness.Node, cpu *processorSlices, program, burden string, runs int, pause time.Duration,
) ([]float64, error) {
	if burden != "" {
		stop, err := startBurden(ctx, n, cpu, program, burden)
		defer stop()
		if err != nil {
			return nil, err
		}
	}
	return timeRuns(ctx, n, runs, pause)
}

// floodFiles writes the files of the node and a copy of this program that all users may run.
func floodFiles(dir string) (program string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find this program: %w", err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		return "", fmt.Errorf("cannot copy this program: %w", err)
	}
	program = filepath.Join(dir, "load")
	return program, errors.Join(
		os.Chmod(dir, 0o755), programs.Write(program, b), os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(floodNode), 0o644),
		programs.Write(filepath.Join(dir, "getent"), floodGetent),
	)
}

// startBurden starts the processes of many users.
func startBurden(ctx context.Context, n *harness.Node, cpu *processorSlices, program, what string) (stop func(), err error) {
	var jobs []*harness.Job
	stop = func() {
		for _, j := range jobs {
			j.Kill()
		}
	}
	for i := range floodUsers {
		cmd := as(ctx, firstUser+i, gidRed, program)
		cmd.Env = append(os.Environ(), burdenEnv+"="+what)
		j, err := n.Spawn(cmd)
		if err != nil {
			return stop, err
		}
		jobs = append(jobs, j)
		if err := cpu.toUser(firstUser+i, j.PID()); err != nil {
			return stop, err
		}
	}
	for _, j := range jobs {
		if err := j.AwaitLine(ctx, atIt); err != nil {
			return stop, err
		}
	}
	return stop, nil
}

// as is a command of a user.
func as(ctx context.Context, uid, group int, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: []uint32{uint32(group)}},
	}
	return cmd
}

// timeRuns runs commands of the other user one after the other with pauses, in ms.
func timeRuns(ctx context.Context, n *harness.Node, runs int, pause time.Duration) (durations []float64, err error) {
	for range runs {
		cmd := as(ctx, otherUser, gidBlue, filepath.Join(n.Bin, "gpushare"), "run", "-q", "-t", "blue", "--", "true")
		cmd.Env, cmd.SysProcAttr.Setsid = n.Environ(), true
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("gpushare run: %w: %s", err, out)
		}
		durations = append(durations, float64(time.Since(began).Microseconds())/1000)
		if !loop.Pause(ctx, pause) { // the pace of the user, and no wait for something
			return nil, ctx.Err()
		}
	}
	return durations, nil
}
