package cgroup

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
)

// somePath draws a path of a few names, some of which are prefixes of others.
func somePath(t *rapid.T, label string) string {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "ab", "a.scope", "a.scopes", "b", "run"}), 1, 4).Draw(t, label)
	return "/" + strings.Join(parts, "/")
}

// innermost is a simple lookup: of the registered cgroups that contain the path, the one with most parts.
func innermost(ids map[string]string, cg string) string {
	best, most := "", 0
	for top, id := range ids {
		want, have := strings.Split(top, "/"), strings.Split(cg, "/")
		if len(want) <= len(have) && slices.Equal(want, have[:len(want)]) && len(want) > most {
			best, most = id, len(want)
		}
	}
	return best
}

// The index agrees with a plain map after any sequence of Register and Forget.
func TestIndexIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x ScopeIndex
		ids := map[string]string{} // by path
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			id := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "id")
			maps.DeleteFunc(ids, func(_, other string) bool { return other == id })
			if rapid.Bool().Draw(t, "register") {
				cg := somePath(t, "at")
				ids[cg] = id // it replaces the scope that had the cgroup before
				x.Register(id, cg)
			} else {
				x.Forget(id)
			}
			queried := somePath(t, "queried")
			if got, ok := x.lookup([]byte(queried)); got != innermost(ids, queried) || ok != (got != "") {
				t.Fatalf("%s is of %q (%v), want %q of %v", queried, got, ok, innermost(ids, queried), ids)
			}
			if got, want := x.IDs(), slices.Collect(maps.Values(ids)); len(got) != len(want) {
				t.Fatalf("registered are %v, want %v", got, want)
			}
			for cg, id := range ids {
				if got, ok := x.Path(id); !ok || got != cg {
					t.Fatalf("%s is at %q, want %q", id, got, cg)
				}
			}
		}
	})
}

// PIDIndex and ScopeOf agree about every process, in a tree of plain directories.
func TestPIDIndexAgreesWithScopeOf(t *testing.T) {
	mount := t.TempDir()
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		h := Hierarchy{Mount: filepath.Join(mount, strconv.Itoa(round))}
		at := map[int]string{}
		for pid := 1; pid <= rapid.IntRange(1, 12).Draw(t, "processes"); pid++ {
			at[pid*1000] = somePath(t, "at")
		}
		procs := map[string][]string{}
		for pid, cg := range at {
			for d := cg; d != "/"; d = path.Dir(d) {
				procs[d] = append(procs[d], nil...)
			}
			procs[cg] = append(procs[cg], strconv.Itoa(pid))
		}
		for cg, pids := range procs {
			if err := os.MkdirAll(h.Dir(cg), 0o755); err != nil {
				t.Fatal(err)
			}
			text := strings.Join(append(pids, "0", ""), "\n")
			if err := os.WriteFile(filepath.Join(h.Dir(cg), "cgroup.procs"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var x ScopeIndex
		for i := range rapid.IntRange(0, 4).Draw(t, "scopes") {
			x.Register(fmt.Sprint("l-", i), somePath(t, "scope"))
		}
		got := x.PIDIndex(h)
		for pid, cg := range at {
			id, ok := x.lookup([]byte(cg))
			if indexed, seen := got[pid]; indexed != id || seen != ok {
				t.Fatalf("pid %d in %s is in scope %q, and the index has %q", pid, cg, id, indexed)
			}
		}
		if _, zero := got[0]; zero {
			t.Fatal("the index has pid 0")
		}
	})
}

func TestPIDIndexOfRealProcesses(t *testing.T) {
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	want := map[int]string{}
	for _, id := range []string{"l-1", "l-2"} {
		p, release := spawnWaiting(t, "sleep 60 & sleep 60")
		if _, err := tree.StartScope(ctx, train(id, p)); err != nil {
			t.Fatal(err)
		}
		release()
		eventually(t, "its children are members", func() bool {
			members, err := tree.Members(ctx, id)
			for _, m := range members {
				want[m.PID] = id
			}
			return err == nil && len(members) == 3
		})
	}
	// Move one into a nested cgroup.
	leaf, err := tree.Leaf("l-2")
	if err != nil {
		t.Fatal(err)
	}
	nested := path.Join(leaf, "mine")
	if err := mkdir(tree.Hierarchy().Dir(nested)); err != nil {
		t.Fatal(err)
	}
	members, err := tree.Members(ctx, "l-2")
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Hierarchy().Place(members[0], nested); err != nil {
		t.Fatal(err)
	}
	if got := tree.PIDIndex(); !maps.Equal(got, want) {
		t.Errorf("the index is %v, want %v", got, want)
	}
	for pid, id := range want {
		if got, ok := tree.ScopeOf(pid); !ok || got != id {
			t.Errorf("pid %d is in scope %q, want %q", pid, got, id)
		}
	}
	if err := tree.KillScope(ctx, "l-1"); err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(want, func(_ int, id string) bool { return id == "l-1" })
	if got := tree.PIDIndex(); !maps.Equal(got, want) {
		t.Errorf("after one scope ended the index is %v, want %v", got, want)
	}
}

// A reused pid belongs to the scope of its new process.
func TestScopeOfAReusedPID(t *testing.T) {
	if !procfstest.InPIDNamespace(t) {
		return
	}
	tree := newTree(t)
	ctx := within(t, 20*time.Second)
	p, release := spawnWaiting(t, "exit")
	if _, err := tree.StartScope(ctx, train("l-1", p)); err != nil {
		t.Fatal(err)
	}
	if id, ok := tree.ScopeOf(p.PID); !ok || id != "l-1" {
		t.Fatalf("pid %d is in scope %q", p.PID, id)
	}
	release()
	eventually(t, "the process ends", func() bool { _, err := procfs.Read(p.PID); return err != nil })
	again := samePID(t, p)
	if id, ok := tree.ScopeOf(again.PID); ok {
		t.Errorf("the new process with this pid is in scope %q", id)
	}
	if len(tree.PIDIndex()) != 0 {
		t.Errorf("the index has it too: %v", tree.PIDIndex())
	}
	// The identity of the old process does not reach the new one.
	if held, err := procfs.OpenPidfd(p.PID, p.Start); err == nil {
		held.Close()
		t.Error("the identity of the old process opens the new one")
	}
	if _, err := tree.StartScope(ctx, train("l-2", p)); err == nil {
		t.Error("a scope was started for the old process with the new one")
	}
	if at, err := procfs.Cgroup(again.PID); err != nil || Below(at, tree.Top()) {
		t.Errorf("the new process is in %s, %v", at, err)
	}
}

// samePID starts a process with the pid of one that has exited, and another start time.
func samePID(t *testing.T, old Process) Process {
	t.Helper()
	procfstest.AwaitOtherStart(old.Start)
	procfstest.NextPID(t, old.PID)
	p := start(t, exec.Command("sleep", "60"))
	if p.PID != old.PID || p.Start == old.Start {
		t.Fatalf("the new process is %+v, the old one was %+v", p, old)
	}
	return p
}

// BenchmarkPIDIndex reads the index of 1000 real processes in 50 scopes. It reports the duration for 10 000, in proportion.
func BenchmarkPIDIndex(b *testing.B) {
	tree := newTree(b)
	const scopes, each = 50, 20
	for i := range scopes {
		benchProcesses(b, tree, "l-"+strconv.Itoa(i), each)
	}
	if n := len(tree.PIDIndex()); n != scopes*each {
		b.Fatalf("%d processes, want %d", n, scopes*each)
	}
	b.ReportAllocs()
	for b.Loop() {
		tree.PIDIndex()
	}
	b.ReportMetric(b.Elapsed().Seconds()*1000/float64(b.N)*10, "ms/10000-processes")
}

// benchProcesses starts a scope with n processes.
func benchProcesses(b *testing.B, tree *Tree, id string, n int) {
	b.Helper()
	cmd := exec.Command(
		"sh", "-c", fmt.Sprintf("read x; i=1; while [ $i -lt %d ]; do (read y <&3) & i=$((i+1)); done; echo up; read y <&3", n),
	)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	r, w, err := os.Pipe() // the processes exit when w is closed
	if err != nil {
		b.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{r}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	r.Close()
	b.Cleanup(func() {
		w.Close()
		_ = cmd.Wait() // it may have been killed
	})
	at, err := procfs.Start(cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := tree.StartScope(b.Context(), train(id, Process{PID: cmd.Process.Pid, Start: at})); err != nil {
		b.Fatal(err)
	}
	in.Close()
	if _, err := out.Read(make([]byte, 8)); err != nil {
		b.Fatal(err)
	}
}
