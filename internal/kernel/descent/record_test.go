package descent

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// opened opens a record that is not pinned.
func opened(t *testing.T) *Record { return reopened(t, "", maxMembers) }

func reopened(t *testing.T, dir string, capacity uint32) *Record {
	t.Helper()
	r, err := open(dir, capacity)
	if errors.Is(err, fs.ErrPermission) {
		t.Skip("needs root: ", err)
	}
	if errors.Is(err, errNamespace) {
		t.Skip("needs the pids of the host, and not those of a container")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// members are the recorded processes of a lease.
func members(t *testing.T, r *Record, lease string) map[int]uint64 {
	t.Helper()
	all, err := r.Members()
	if err != nil {
		t.Fatal(err)
	}
	return all[lease]
}

// bpffs mounts a BPF file system and returns the directory of a record in it.
func bpffs(t *testing.T) string {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("bpf", at, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		t.Skip("mounting a BPF file system needs root: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(at, "gpushare")
}

// shell starts a script, in a process group of its own, that prints a line with the pid of its last descendant.
func shell(t *testing.T, script string) (cmd *exec.Cmd, start func() int) {
	t.Helper()
	cmd = exec.Command("sh", "-c", "read -r x; "+script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL), cmd.Wait() }) // It may have ended.
	return cmd, func() (pid int) {
		t.Helper()
		if _, err := in.Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fscan(bufio.NewReader(out), &pid); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // It may have ended.
		return pid
	}
}

// A descendant is recorded although its parents have ended and it is in a session of its own, with its start time.
func TestDescendantsRemainRecorded(t *testing.T) {
	t.Parallel()
	r := opened(t)
	cmd, start := shell(t, "setsid sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 60 >/dev/null\" & '; sleep 60")
	undo, err := r.Add("one", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	grandchild := start()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // It was killed.
	all := members(t, r, "one")
	began, err := procfs.Start(grandchild)
	if err != nil || all[grandchild] != began || began == 0 {
		t.Errorf("%d, which started at %d, is recorded: %v, %v", grandchild, began, all, err)
	}
	if _, still := all[cmd.Process.Pid]; still {
		t.Errorf("%d has ended and is recorded: %v", cmd.Process.Pid, all)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	if all, err := r.Members(); err != nil || len(all) > 0 {
		t.Errorf("undone: %v, %v", all, err)
	}
}

// The record is read several times a second: the buffer for its entries is used again.
func TestReadingTheRecordAllocatesLittle(t *testing.T) {
	r := opened(t)
	const reads = 50
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range reads {
		if _, err := r.entries(); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	const most = 20 << 10 // of one read
	if n := (after.TotalAlloc - before.TotalAlloc) / reads; n > most {
		t.Errorf("a read allocates %d bytes, and at most %d should be", n, most)
	}
}

// What is pinned is continued by the kernel when no daemon runs, and read by the next one.
func TestARecordOutlivesItsDaemon(t *testing.T) {
	t.Parallel()
	dir := bpffs(t)
	first, err := open(dir, maxMembers)
	if err != nil {
		t.Fatal(err)
	}
	if !first.Begins {
		t.Error("the first one says that there was a record before")
	}
	cmd, start := shell(t, "setsid sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 60 >/dev/null\" & '; sleep 60")
	if _, err := first.Add("one", cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	grandchild := start()
	_, _ = cmd.Process.Kill(), cmd.Wait()
	second := reopened(t, dir, maxMembers)
	all := members(t, second, "one")
	if all[grandchild] == 0 || all[cmd.Process.Pid] != 0 || second.Begins {
		t.Errorf("%d is recorded, begins %t: %v", grandchild, second.Begins, all)
	}
	third, err := open(dir, maxMembers) // The programs of both run for a moment.
	if err != nil {
		t.Fatal(err)
	}
	for pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL) // It may have ended.
	}
	await(t, "an ended process is still recorded", func() bool { return len(members(t, third, "one")) == 0 })
	if err := third.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record of no process is still pinned: %v", err)
	}
}

// A record of which a part is missing, or of another layout, has a gap: it begins again.
func TestAnIncompleteRecordBeginsAgain(t *testing.T) {
	t.Parallel()
	for _, name := range pinNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := bpffs(t)
			first, err := open(dir, maxMembers)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := first.Add("one", os.Getpid()); err != nil {
				t.Fatal(err)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			r := reopened(t, dir, maxMembers)
			if all, err := r.Members(); err != nil || !r.Begins || len(all) > 0 {
				t.Errorf("begins %t: %v, %v", r.Begins, all, err)
			}
		})
	}
}

// Where nothing can be pinned, the record ends with the process, and says why.
func TestARecordThatCannotBePinned(t *testing.T) {
	t.Parallel()
	at := filepath.Dir(bpffs(t))
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "sys/fs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at, filepath.Join(root, "sys/fs/bpf")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		flags uintptr
		want  error
	}{{"it can", 0, nil}, {"the file system is read-only, as in the sandbox of a unit", unix.MS_RDONLY, unix.EROFS}} {
		if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|c.flags, ""); err != nil {
			t.Fatal(err)
		}
		r, err := Open(root, "node")
		if err != nil {
			t.Fatal(err)
		}
		if !errors.Is(r.NotKept, c.want) || !r.Begins {
			t.Errorf("%s: begins %t, it is not kept: %v", c.name, r.Begins, r.NotKept)
		}
		if _, err := os.Lstat(filepath.Join(at, "gpushare/node", forkPin)); (err == nil) != (c.want == nil) {
			t.Errorf("%s: the pin: %v", c.name, err)
		}
		if _, err := r.Add("one", os.Getpid()); err != nil {
			t.Error(err)
		}
		if err := errors.Join(r.Release("one"), r.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A process for which the record has no place is counted, and may run.
func TestProcessesBeyondTheCapacityAreCounted(t *testing.T) {
	t.Parallel()
	r := reopened(t, "", 1)
	cmd, start := shell(t, "sleep 60 >/dev/null & sleep 60 >/dev/null & echo $!; wait")
	if _, err := r.Add("one", cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	lost := func() uint64 {
		n, _, err := r.Lost()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if lost() != 0 {
		t.Errorf("%d are lost", lost())
	}
	start()
	if n := lost(); n != 2 {
		t.Errorf("%d are lost, 2 have started", n)
	}
	other, _ := shell(t, "sleep 60")
	if _, err := r.Add("two", other.Process.Pid); err != nil {
		t.Error("it must run: ", err)
	}
	if n := lost(); n != 3 {
		t.Errorf("%d are lost", n)
	}
	if all, err := r.Members(); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// The record of a process lasts until its last thread ends, and over an execve by another thread than the first, which takes its pid.
func TestThreads(t *testing.T) {
	t.Parallel()
	r := opened(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), threadsEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if _, err := r.Add("one", cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil { // It ends its first thread, starts a process, and executes a program in another.
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, what := range []string{"of a process whose first thread has ended", "of a process after execve by another thread"} {
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		child := 0
		if _, err := fmt.Sscan(lines.Text(), &child); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) })
		all := members(t, r, "one")
		if all[child] == 0 || all[cmd.Process.Pid] == 0 {
			t.Errorf("the child %d %s, and %d, are recorded: %v", child, what, cmd.Process.Pid, all)
		}
	}
}

// threadsEnv makes this program the process of TestThreads.
const threadsEnv = "GPUSHARE_TEST_THREADS"

func TestMain(m *testing.M) {
	if os.Getenv(threadsEnv) != "" {
		endFirstThread()
	}
	os.Exit(m.Run())
}

// endFirstThread ends the first thread, and executes a program in another one.
func endFirstThread() {
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		<-ended
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		for { // The first thread is a zombie when it has ended.
			if st, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", os.Getpid())); err == nil &&
				strings.Contains(string(st), ") Z ") {
				break
			}
			runtime.Gosched()
		}
		pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "60"}, &syscall.ProcAttr{Env: os.Environ()})
		if err == nil {
			fmt.Println(pid)
			err = syscall.Exec("/bin/sh", []string{"sh", "-c", "sleep 60 >/dev/null & echo $!; wait"}, nil)
		}
		fmt.Println(err)
	}()
	runtime.LockOSThread()
	close(ended)
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

// A record of a process that ended while it was recorded does not become that of another process with its pid.
func TestAStaleEntryEnds(t *testing.T) {
	t.Parallel()
	r := opened(t)
	cmd, _ := shell(t, "sleep 60")
	if _, err := r.Add("one", cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	var e entry
	if err := r.members.Lookup(uint32(cmd.Process.Pid), &e); err != nil {
		t.Fatal(err)
	}
	e.Start -= nanosecondsPerTick // It was another one.
	if err := r.members.Put(uint32(cmd.Process.Pid), e); err != nil {
		t.Fatal(err)
	}
	if all := members(t, r, "one"); len(all) > 0 {
		t.Errorf("%v", all)
	}
	if all, err := r.entries(); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// A process that was seen to run after it was recorded is not read again with each reading of the record.
func TestAProcessThatRunsIsReadOnce(t *testing.T) {
	t.Parallel()
	r := opened(t)
	cmd, _ := shell(t, "sleep 60")
	if _, err := r.Add("one", cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if all := members(t, r, "one"); all[cmd.Process.Pid] == 0 {
			t.Fatalf("%v", all)
		}
		if len(r.unsure) > 0 {
			t.Errorf("%d processes are read with each reading", len(r.unsure))
		}
	}
}

// A process of a lease that gets another lease is recorded for that one, and for the first again if that fails.
func TestOneLeaseInAnother(t *testing.T) {
	t.Parallel()
	r := opened(t)
	cmd, _ := shell(t, "sleep 60")
	pid := cmd.Process.Pid
	recorded := func(id string, want bool) {
		t.Helper()
		if all := members(t, r, id); (all[pid] != 0) != want {
			t.Errorf("%s: %v", id, all)
		}
	}
	if _, err := r.Add("outer", pid); err != nil {
		t.Fatal(err)
	}
	undo, err := r.Add("inner", pid)
	if err != nil {
		t.Fatal(err)
	}
	recorded("outer", false)
	recorded("inner", true)
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	recorded("outer", true)
	if err := r.Release("outer"); err != nil {
		t.Fatal(err)
	}
	recorded("outer", false)
}

func TestAddAProcessThatHasEnded(t *testing.T) {
	t.Parallel()
	r := opened(t)
	if _, err := r.Add("one", 1<<30); err == nil {
		t.Error("a process that does not exist is recorded")
	}
	if all := members(t, r, "one"); len(all) > 0 {
		t.Errorf("%v", all)
	}
}

// Processes of others are not recorded, however many start and end.
func TestOtherProcessesAreNotRecorded(t *testing.T) {
	t.Parallel()
	r := opened(t)
	if out, err := exec.Command(
		"sh", "-c", "i=0; while [ $i -lt 300 ]; do (exit 0) & i=$((i+1)); done; wait",
	).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if all, err := r.Members(); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal(what)
		}
	}
}

// BenchmarkMembers measures what a pass reads for 50 processes of a lease.
func BenchmarkMembers(b *testing.B) {
	r, err := open("", maxMembers)
	if err != nil {
		b.Skip("needs root and a kernel that loads the programs: ", err)
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", "read -r x; for i in $(seq 49); do sleep 60 & done; echo; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // It was killed.
	}()
	if _, err := r.Add("one", cmd.Process.Pid); err != nil {
		b.Fatal(err)
	}
	_, _ = in.Write([]byte("x\n"))
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if all, err := r.Members(); err != nil || len(all["one"]) != 50 {
			b.Fatal(len(all["one"]), err)
		}
	}
}

// BenchmarkPrograms measures how long the programs make each fork and exit: of processes that are of no lease, and of those of a lease, with
// a bound of its user and without.
func BenchmarkPrograms(b *testing.B) {
	for _, c := range []struct {
		name         string
		lease, bound bool
	}{{"of no lease", false, true}, {"of a lease", true, true}, {"of a lease without a bound", true, false}} {
		b.Run(c.name, func(b *testing.B) {
			r, err := open("", maxMembers)
			if err != nil {
				b.Skip("needs root and a kernel that loads the programs: ", err)
			}
			defer r.Close()
			if c.bound {
				r.UserOf = func(string) (int, bool) { return 1000, true }
			}
			if c.lease {
				if _, err := r.Add("one", os.Getpid()); err != nil {
					b.Fatal(err)
				}
			}
			counting, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
			if err != nil {
				b.Skip("needs a kernel that counts the time of programs (Linux 5.8, CAP_SYS_ADMIN): ", err)
			}
			defer counting.Close()
			for b.Loop() {
				if err := exec.Command("true").Run(); err != nil {
					b.Fatal(err)
				}
			}
			for name, a := range map[string]attached{"ns/fork": r.fork, "ns/exit": r.exit} {
				s, err := a.program.Stats()
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), name)
			}
		})
	}
}
