package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/silentfs"
	"github.com/gpushare/gpushare/test/tracing"
)

// waitCommand is a command of a user that does a call with a path, which does not return.
func waitCommand(t *testing.T, call, path string) string {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	return become + "env '" + silentfs.Environment(silentfs.Wait, call, path) + "' " + program
}

// beginServed starts a lease of a user whose process waits for a file system that another process of the lease serves, which has left its
// session. A lease may not open /dev/fuse: the connection was opened before.
func beginServed(t *testing.T, n *harness.Node, tenant, grant string) (id string) {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	dir, conn := silentfs.Mounted(t, 65534)
	script := fmt.Sprintf(
		`echo "lease=$GPUSHARE_LEASE."; %s setsid -f %s; exec 3>&-; %s exec %[2]s`,
		assignment(silentfs.Environment(silentfs.Serve, dir, "65534", "3")),
		program,
		assignment(silentfs.Environment(silentfs.Wait, silentfs.Stat, filepath.Join(dir, silentfs.Lost))),
	)
	args := append(strings.Fields("run -q -t "+tenant+" --grant "+grant+" -- "+become), "sh", "-c", script)
	cmd := exec.CommandContext(t.Context(), filepath.Join(n.Bin, "gpushare"), args...)
	cmd.Env, cmd.ExtraFiles = n.Environ(), []*os.File{conn}
	job, err := n.Spawn(cmd)
	// The user has a copy outside of the lease, so the connection does not end with the server.
	t.Cleanup(func() { conn.Close() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "silent"); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(job.Output(), "lease=")
	id, _, _ = strings.Cut(rest, ".")
	return id
}

// assignment is a variable as a shell takes it before a command.
func assignment(variable string) string {
	name, value, _ := strings.Cut(variable, "=")
	return name + `="` + value + `"`
}

// patiently is a context for a stop that takes its whole grace, and more on a loaded host.
func patiently(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// actions are the lines of the audit about what was done so that killed processes exit.
func actions(t *testing.T, n *harness.Node) string {
	t.Helper()
	r := n.CLI(soon(t), "audit", "--json", "--since", "1h")
	if r.Code != 0 {
		t.Fatalf("audit exits with %d: %s", r.Code, r.Err)
	}
	var out []string
	for line := range strings.Lines(r.Out) {
		if strings.Contains(line, "which was killed") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// A lease ends although its process waits for a file system of its user, which never answers, wherever and however it is served. The
// GPU is granted to the next one.
func TestStopOfALeaseThatAFileSystemKeeps(t *testing.T) {
	enumeration.Long(t)
	for _, c := range []struct {
		name, call, file string
		frozen, traced   bool
	}{
		{name: "a look-up", call: silentfs.Stat, file: silentfs.Lost},
		{name: "an execve", call: silentfs.Exec, file: silentfs.Sealed},
		{name: "a read", call: silentfs.Read, file: silentfs.Direct},
		{name: "a page fault", call: silentfs.Fault, file: silentfs.Cached},
		{name: "threads", call: silentfs.Threads, file: silentfs.Lost},
		{name: "a server that is stopped", call: silentfs.Stat, file: silentfs.Lost, frozen: true},
		{name: "a server that is traced", call: silentfs.Stat, file: silentfs.Lost, traced: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := escapeNode(t)
			fs := silentfs.Start(t, 65534)
			events := follow(t, n)
			_, id := begin(t, n, "red", "whole", waitCommand(t, c.call, fs.Path(c.file)))
			t.Cleanup(fs.Stop) // before the job, which waits for it if the test fails
			fs.AwaitSilent(t)
			numbered := fs.Numbered(t)
			if c.frozen {
				if err := syscall.Kill(fs.PID, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			if c.traced {
				tracing.Run(t, tracing.Command(t, 65534, tracing.Trace, append(tracing.Others(t, fs.PID), fs.PID)...))
			}
			stopAndGrantAgain(t, n, id)
			text := actions(t, n)
			by := fmt.Sprintf("served by pid %d (", fs.PID)
			if !numbered {
				by = "which may be served by pid " // Those of the other tests too.
			}
			if !strings.Contains(text, "the FUSE file system at "+fs.Dir) || !strings.Contains(text, "of uid 65534") ||
				!strings.Contains(text, by) ||
				!strings.Contains(text, "is aborted") {
				t.Errorf("the audit has\n%s", text)
			}
			if e := events.await(t, "mount.aborted", id); !strings.Contains(e.Message, fs.Dir) {
				t.Errorf("the event is %+v", e)
			}
			if numbered && !c.traced { // Else its tracer keeps it in its exit.
				<-fs.Ended
			}
		})
	}
	t.Run("a server in the lease, which has left its session", func(t *testing.T) {
		t.Parallel()
		n := escapeNode(t)
		stopAndGrantAgain(t, n, beginServed(t, n, "red", "whole"))
	})
}

// stopAndGrantAgain stops a lease that has a GPU alone, and starts another on it.
func stopAndGrantAgain(t *testing.T, n *harness.Node, id string) {
	t.Helper()
	began := time.Now()
	if r := n.CLI(patiently(t), "lease", "stop", id); r.Code != 0 {
		t.Fatalf("after %v lease stop exits with %d: %s%s\n%s", time.Since(began), r.Code, r.Out, r.Err, daemonLog(n))
	}
	t.Logf("it was stopped in %.1f s", time.Since(began).Seconds())
	s := status(t, n)
	if l := leaseByID(s, id); l != nil {
		t.Errorf("the lease is still %s", l.State)
	}
	if got := conditionsOf(s, "lease-not-ended"); len(got) != 0 {
		t.Errorf("conditions: %q", got)
	}
	if r := n.CLI(patiently(t), "run", "-q", "-t", "blue", "--grant", "whole", "--", "true"); r.Code != 0 {
		t.Errorf("the next lease exits with %d: %s", r.Code, r.Err)
	}
}

// A change that stops such a lease is done too, and its step says what it waits for.
func TestForceOverALeaseThatAFileSystemKeeps(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)
	fs := silentfs.Start(t, 65534)
	_, id := begin(t, n, "red", "part", waitCommand(t, silentfs.Stat, fs.Path(silentfs.Lost)))
	t.Cleanup(fs.Stop)
	fs.AwaitSilent(t)
	numbered, by := fs.Numbered(t), fmt.Sprintf("served by pid %d (", fs.PID)
	if !numbered {
		by = "which may be served by pid "
	}
	r := n.CLIIn(
		patiently(t), replaced(t, shared, "      - {name: part, timeslice: {share: 30%, gpu_memory: 8GiB}}\n", ""), "apply", "-f", "-",
		"--force",
	)
	if r.Code != 0 {
		t.Errorf("apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	waits := slices.IndexFunc(strings.Split(r.Out, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "  waits ") && strings.Contains(line, "stop lease "+id) &&
			strings.Contains(line, "of "+fs.Path(silentfs.Lost)) &&
			strings.Contains(line, by) &&
			strings.Contains(line, "it is aborted")
	})
	if waits < 0 {
		t.Errorf("its step does not say what it waits for: %s", r.Out)
	}
	if numbered {
		<-fs.Ended
	}
}

// A file system of root is not aborted: the stop fails in time, names it and its server, and the command of its hint helps.
func TestStopOfALeaseThatAFileSystemOfRootKeeps(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := escapeNode(t)
	fs := silentfs.Start(t, 0)
	_, id := begin(t, n, "red", "whole", waitCommand(t, silentfs.Stat, fs.Path(silentfs.Lost)))
	t.Cleanup(fs.Stop)
	fs.AwaitSilent(t)
	r := n.CLI(patiently(t), "lease", "stop", id)
	want := fmt.Sprintf("of root, served by pid %d (", fs.PID)
	if !fs.Numbered(t) {
		want = "of root, which may be served by pid "
	}
	if r.Code != 5 || !strings.Contains(r.Err, want) || !strings.Contains(r.Err, "it is not aborted, because it belongs to root") ||
		strings.Contains(r.Err, "reboot") {
		t.Fatalf("lease stop exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if got := conditionsOf(status(t, n), "lease-not-ended"); len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("conditions: %q", got)
	}
	if text := actions(t, n); text != "" {
		t.Errorf("the audit has\n%s", text)
	}
	_, command, ok := strings.Cut(r.Err, "end its requests: '")
	command, _, _ = strings.Cut(command, "'")
	if out, err := exec.CommandContext(soon(t), "unshare", "--mount", "sh", "-c", command).CombinedOutput(); !ok || err != nil {
		t.Fatalf("the command of the hint: %v: %s", err, out)
	}
	awaitStatus(t, n, "the lease does not end, or its condition lasts", func(s *api.Status) bool {
		return leaseByID(s, id) == nil && len(conditionsOf(s, "lease-not-ended")) == 0
	})
}

// A process that left its lease is killed although a file system of its user keeps it.
func TestEscapeThatAFileSystemKeeps(t *testing.T) {
	t.Parallel()
	n := escapeNode(t)
	fs := silentfs.Start(t, 65534)
	x := &escapeFixture{t: t, n: n, top: unified(t), events: follow(t, n)}
	x.job, x.id = begin(t, n, "red", "part", waitCommand(t, silentfs.Stat, fs.Path(silentfs.Lost)))
	t.Cleanup(fs.Stop)
	fs.AwaitSilent(t)
	x.move(x.job.PID())
	x.events.await(t, "lease.escaped", x.id)
	select {
	case <-x.job.Done():
	case <-patiently(t).Done():
		t.Fatalf("it does not end\n%s", daemonLog(n))
	}
	x.events.await(t, "lease.ended", x.id)
}

// A detached program whose file or directory is on such a file system is not started: the request fails in time and says where it
// waits, and the GPU is granted to the next one.
func TestDetachedProgramOnASilentFileSystem(t *testing.T) {
	enumeration.Long(t)
	for _, c := range []struct {
		name string
		body func(fs *silentfs.Server) api.Detach
		says string
	}{
		{"its file", func(fs *silentfs.Server) api.Detach { return api.Detach{Path: fs.Path(silentfs.Sealed), Dir: "/"} }, "execve of %s/sealed"},
		{"its directory", func(fs *silentfs.Server) api.Detach { return api.Detach{Path: "/bin/true", Dir: fs.Dir} }, "chdir of %s, on fuse"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := escapeNode(t)
			fs := silentfs.Start(t, 65534)
			program := c.body(fs)
			body, err := json.Marshal(api.LeaseRequest{Tenant: "blue", Grant: "whole", Command: []string{"program"}, Detach: &program})
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(probe{Socket: n.Socket(), Method: "POST", Path: "/v1/leases", Body: string(body)})
			if err != nil {
				t.Fatal(err)
			}
			self, err := prober()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(patiently(t), self)
			cmd.Env, cmd.Dir = []string{probeEnv + "=" + string(text)}, "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			out, err := cmd.Output()
			var r reply
			if err != nil || json.Unmarshal(out, &r) != nil {
				t.Fatalf("%v: %s", err, out)
			}
			want := fmt.Sprintf(c.says, fs.Dir)
			if !strings.Contains(r.Body, "it does not run after 10s: it waits in "+want) || !strings.Contains(r.Body, `"exit_code":126`) {
				t.Errorf("the answer is %+v, want %q\n%s", r, want, daemonLog(n))
			}
			awaitStatus(t, n, "the lease is left", func(s *api.Status) bool { return len(s.Leases) == 0 })
			if r := n.CLI(patiently(t), "run", "-q", "-t", "red", "--grant", "whole", "--", "true"); r.Code != 0 {
				t.Errorf("the next lease exits with %d: %s", r.Code, r.Err)
			}
			if text := actions(t, n); !strings.Contains(text, "is aborted") || !strings.Contains(text, fs.Dir) {
				t.Errorf("the audit has\n%s", text)
			}
		})
	}
}
