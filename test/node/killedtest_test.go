package node

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/test/harness"
)

// leavesEnv makes TestThatIsKilled start its programs and wait until it is killed.
const leavesEnv = "GPUSHARE_TEST_LEAVES"

// leaves is what TestThatIsKilled has started.
type leaves struct {
	Dir, Subtree string
	Processes    []procfs.Stat
}

const withMPS = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: mps}
  - {select: {index: 3}, mode: timeslice}
tenants:
  - name: red
    grants: [{name: mps, mps: {share: 50%, gpu_memory: 4GiB}}, {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}]
`

// TestThatIsKilled is the test that TestNothingOfAKilledTestIsLeft kills: each kind of program of a node runs, and a helper of the
// test itself, of which the harness knows nothing.
func TestThatIsKilled(t *testing.T) {
	if os.Getenv(leavesEnv) == "" {
		t.Skip("TestNothingOfAKilledTestIsLeft runs it in a process of its own")
	}
	n := start(t, quick)
	apply(t, n, withMPS)
	for _, grant := range []string{"mps", "part"} {
		j, err := n.Run(append([]string{"-t", "red", "--grant", grant, "--"}, n.Burn("--memory", "1GiB", "--seconds", "600")...)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.AwaitLine(soon(t), "ready"); err != nil {
			t.Fatal(err)
		}
	}
	// The sleep is no child of this test, of its programs or of its session.
	detach(t, n, "setsid sleep 600 & echo ready; sleep 600", "-t", "red", "--grant", "part")
	helper := exec.Command("sh", "-c", "setsid sh -c 'echo here; sleep 600' & wait")
	out, err := helper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	l := leaves{Dir: n.Dir, Subtree: n.Subtree()}
	err = harness.Await(soon(t), 10*time.Millisecond, "three sleep", func() (bool, error) {
		all, err := procfs.All()
		if err != nil {
			return false, err
		}
		l.Processes = of(all, os.Getpid(), n.Dir)
		sleeping := 0
		for _, p := range l.Processes {
			if p.Name == "sleep" {
				sleeping++
			}
		}
		return sleeping == 3, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("leaves %s\n", b)
	<-t.Context().Done() // of the time limit of the whole test
}

// of are the descendants of a process and what names a directory in its command line.
func of(all []procfs.Stat, pid int, dir string) (found []procfs.Stat) {
	mine := map[int]bool{pid: true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			if p.PID != pid && !mine[p.PID] && (mine[p.PPID] || bytes.Contains(line, []byte(dir))) {
				mine[p.PID], grown = true, true
				found = append(found, p)
			}
		}
	}
	return found
}

// A test that is killed leaves no process, no cgroup and no directory, and it does not matter who their parents are.
func TestNothingOfAKilledTestIsLeft(t *testing.T) {
	t.Parallel()
	bin(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestThatIsKilled$", "-test.v")
	cmd.Env = append(os.Environ(), leavesEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	var l leaves
	var text strings.Builder
	for s := bufio.NewScanner(out); s.Scan(); {
		fmt.Fprintln(&text, s.Text())
		if line, ok := strings.CutPrefix(s.Text(), "leaves "); ok {
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if l.Dir == "" {
		t.Fatalf("it did not start its programs:\n%s", &text)
	}
	names := map[string]int{}
	for _, p := range l.Processes {
		names[p.Name]++
	}
	programs := []string{"gpusim", "gpushared", "gpushare-nvml", "gpusim-burn", "sleep", "nvidia-cuda-mps"}
	if os.Geteuid() == 0 {
		programs = append(programs, "gpushare-front")
	}
	for _, name := range programs {
		if names[name] == 0 {
			t.Errorf("no %s is found in %v:\n%s", name, names, &text)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	alive := func() (left []string) {
		for _, p := range l.Processes {
			if s, err := procfs.Read(p.PID); err == nil && s.Start == p.Start && !s.Dead() {
				left = append(left, fmt.Sprintf("pid %d (%s)", s.PID, s.Name))
			}
		}
		return left
	}
	err = harness.Await(soon(t), 50*time.Millisecond, "everything ends", func() (bool, error) {
		_, err := os.Stat(l.Dir)
		return len(alive()) == 0 && errors.Is(err, fs.ErrNotExist), nil
	})
	if err != nil {
		entries, _ := filepath.Glob(l.Dir + "/*")
		t.Errorf("%v: %v run, %v is there", err, alive(), entries)
	}
	if h, err := cgroup.FindHierarchy(); err == nil && h.Exists(l.Subtree) {
		t.Errorf("the cgroup %s is left", l.Subtree)
	}
	// Another one may have been started meanwhile.
	all, err := procfs.All()
	if err != nil {
		t.Fatal(err)
	}
	if left := slices.DeleteFunc(of(all, -1, l.Dir), procfs.Stat.Dead); len(left) > 0 {
		t.Errorf("%+v name the directory", left)
	}
}
