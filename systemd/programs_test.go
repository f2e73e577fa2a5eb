package systemd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/test/programs"
)

// startConn is a connection whose other end becomes a program's standard input.
func startConn(t *testing.T) (local net.Conn, remote *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "local")
	defer f.Close()
	if local, err = net.FileConn(f); err != nil {
		t.Fatal(err)
	}
	remote = os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { local.Close(); remote.Close() })
	return local, remote
}

// script waits for one line on its standard input and then runs a command.
func script(then string) []string { return []string{"/bin/sh", "-c", "read word; " + then} }

// A lease's service from start to end, with a fake service manager and real cgroups and processes.
func TestProgramLife(t *testing.T) {
	a, f := openReal(t)
	for _, c := range []struct {
		name, then string
		exited     bool
		code       int
	}{{"fails", "exit 3", true, 3}, {"succeeds", "exit 0", true, 0}, {"is killed", "kill -9 $$", false, 9}} {
		t.Run(c.name, func(t *testing.T) {
			testProgram(t, a, c.then, c.exited, c.code)
			f.set(func() {
				for name := range f.units {
					if strings.HasSuffix(name, ".service") {
						t.Errorf("%s is still loaded", name)
					}
				}
			})
		})
	}
	started := strings.Join(f.taken(), "\n")
	if !strings.Contains(started, "-lease-p1.service") {
		t.Errorf("the calls were:\n%s", started)
	}
}

func testProgram(t *testing.T, a *Adapter, then string, exited bool, code int) {
	t.Helper()
	ctx := within(t, 60*time.Second)
	s := cgroup.Scope{ID: "p1", Slice: cgroup.SliceName{Tenant: "red", Grant: "dev"}, Closed: true, Description: "gpushare lease p1"}
	local, remote := startConn(t)
	st, p, err := a.StartProgram(ctx, s, script(then), remote)
	if err != nil {
		t.Fatal(err)
	}
	remote.Close()
	if err := a.h.Verify(p, st.Path); err != nil || filepath.Base(st.Path) != inner || filepath.Base(filepath.Dir(st.Path)) != st.Unit {
		t.Errorf("it is not in %s: %v", st.Path, err)
	}
	if owner, ok := a.ScopeOf(p.PID); !ok || owner != "p1" {
		t.Errorf("its scope is %q", owner)
	}
	if again, err := a.Program(ctx, "p1"); err != nil || again != p {
		t.Errorf("its main process is %+v, %v; want %+v", again, err, p)
	}
	// The next run of the daemon finds it.
	a.index.Forget("p1")
	if found, err := a.Recover(ctx, s); err != nil || found != st {
		t.Errorf("found %+v, %v; want %+v", found, err, st)
	}
	scopes, err := a.Scopes(ctx)
	if err != nil || len(scopes) != 1 || scopes[0] != st {
		t.Errorf("the scopes are %+v, %v", scopes, err)
	}
	// Its device rules are read and set like those of a scope.
	rules := []cgroup.DeviceRule{{Type: 'c', Major: 195, Minor: 255, Access: "rw"}}
	if err := a.SetScopeDeviceRules(ctx, "p1", rules); err != nil {
		t.Error(err)
	}
	if closed, is, err := a.ScopeDeviceRules(ctx, "p1"); err != nil || !closed || len(is) != 1 || is[0].Minor != 255 {
		t.Errorf("its device rules are %v, %+v, %v", closed, is, err)
	}
	if _, err := local.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitEmpty(ctx, "p1"); err != nil {
		t.Fatal(err)
	}
	r, err := a.Result(ctx, "p1")
	if err != nil || r.Exited != exited || r.Code != code || time.Since(r.At).Abs() > time.Minute {
		t.Errorf("it ended as %+v, %v", r, err)
	}
	if _, err := a.Result(ctx, "p1"); !errors.Is(err, cgroup.ErrNotFound) {
		t.Errorf("queried again: %v", err)
	}
}

// On a real service manager: the same, and its output.
func TestHostProgram(t *testing.T) {
	a := openHost(t, nil)
	t.Cleanup(func() {
		// The context of the test has ended.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, n := range []cgroup.SliceName{{Tenant: "red", Grant: "dev"}, {Tenant: "red"}, {}} {
			if err := a.RemoveSlice(ctx, n); err != nil {
				t.Error(err)
			}
		}
	})
	testProgram(t, a, "exit 3", true, 3)
	testProgram(t, a, "exit 0", true, 0)
	testProgram(t, a, "kill -TERM $$", false, 15)
	testProgram(t, a, "kill -9 $$", false, 9)
	ctx := within(t, 60*time.Second)
	local, remote := startConn(t)
	began := time.Now()
	s := cgroup.Scope{ID: "p2", Slice: cgroup.SliceName{Tenant: "red", Grant: "dev"}, MemoryNodes: "0"}
	state, p, err := a.StartProgram(ctx, s, script("echo one; echo two; read word; echo three"), remote)
	if err != nil {
		t.Fatal(err)
	}
	remote.Close()
	if state.MemoryNodes != "0" {
		t.Errorf("its memory comes from NUMA nodes %q", state.MemoryNodes)
	}
	ended := make(chan struct{})
	pipe, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	followed := make(chan error, 1)
	go func() { followed <- a.Output(ctx, "p2", began, -1, ended, pipe) }()
	shown := func() string {
		b, err := os.ReadFile(pipe.Name())
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if _, err := local.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its output is followed", func() bool { return strings.Contains(shown(), "one\ntwo\n") })
	if err := a.Note(p.PID, "gpushare: a notice"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a notice to it is followed", func() bool { return strings.Contains(shown(), "gpushare: a notice\n") })
	if _, err := local.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitEmpty(ctx, "p2"); err != nil {
		t.Fatal(err)
	}
	close(ended)
	if err := <-followed; err != nil || shown() != "one\ntwo\ngpushare: a notice\nthree\n" {
		t.Errorf("%v, the follower saw %q", err, shown())
	}
	if _, err := a.Result(ctx, "p2"); err != nil {
		t.Error(err)
	}
	var last bytes.Buffer
	if err := a.Output(ctx, "p2", began, 1, nil, &last); err != nil || last.String() != "three\n" {
		t.Errorf("%v, its last line is %q", err, last.String())
	}
}

// A lease's memory is bound to NUMA nodes by its unit, from its start, and never by its slice.
func TestMemoryNodesAreTheScopes(t *testing.T) {
	a := &Adapter{prefix: "gpushare", info: cgroup.Info{Limits: []string{"cpuset"}}}
	find := func(s cgroup.Scope) any {
		for _, p := range a.scopeProperties(s) {
			if p.Name == "AllowedMemoryNodes" {
				return p.Value.Value()
			}
		}
		return nil
	}
	if got, ok := find(cgroup.Scope{ID: "x", MemoryNodes: "0,9"}).([]byte); !ok || !bytes.Equal(got, []byte{1, 2}) {
		t.Errorf("nodes 0 and 9 are %v", got)
	}
	if got := find(cgroup.Scope{ID: "x"}); got != nil {
		t.Errorf("without nodes it is %v", got)
	}
	for _, p := range table() {
		if p.name == "AllowedMemoryNodes" {
			t.Error("slices have it too: changing it would move the memory of running leases")
		}
	}
	a.info.Limits = nil
	if got := find(cgroup.Scope{ID: "x", MemoryNodes: "0"}); got != nil {
		t.Errorf("without the controller it is %v", got)
	}
}

// journalctl is a fake that records its arguments and prints the content of a file.
func journalctl(t *testing.T, backwards, follow, rest string) (program, arguments string) {
	t.Helper()
	dir := t.TempDir()
	program, arguments = filepath.Join(dir, "journalctl"), filepath.Join(dir, "arguments")
	text := "#!/bin/sh\necho \"$*\" >>'" + arguments + "'\ncase \"$*\" in\n*--sync*) ;;\n*--reverse*) cat <<'X'\n" + backwards + "\nX\n;;\n*--follow*) cat <<'X'\n" + follow + "\nX\nexec sleep 60 ;;\n*) cat <<'X'\n" + rest + "\nX\n;;\nesac\n"
	if err := programs.Write(program, text); err != nil {
		t.Fatal(err)
	}
	return program, arguments
}

func TestOutputFollowsTheJournalToTheEnd(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip(err)
	}
	// What follows c2 is printed too late for the process that follows.
	first, rest := `{"__CURSOR":"c1","MESSAGE":"one"}`+"\n"+`{"__CURSOR":"c2","MESSAGE":[116,119,255,111]}`, `{"__CURSOR":"c3","MESSAGE":"three"}`
	program, arguments := journalctl(t, "\nX\n;;\n*--follow*) exec sleep 60 ;;\n*--after-cursor=c2*) cat <<'X'\n"+rest, "", first)
	a := &Adapter{prefix: "gpushare", journalctl: program}
	ended := make(chan struct{})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	done := make(chan error, 1)
	go func() {
		done <- a.Output(within(t, 20*time.Second), "red-1", time.Unix(1000, 0), -1, ended, write)
		write.Close()
	}()
	buf := make([]byte, 64)
	got := ""
	for got != "one\ntw\xffo\n" {
		n, err := read.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got += string(buf[:n])
	}
	eventually(t, "it follows", func() bool {
		b, err := os.ReadFile(arguments)
		return err == nil && strings.Contains(string(b), "--follow")
	})
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	n, err := read.Read(buf)
	if err != nil || string(buf[:n]) != "three\n" {
		t.Errorf("the rest is %q, %v", buf[:n], err)
	}
	b, err := os.ReadFile(arguments)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"MESSAGE --since=@1000 --lines=all _SYSTEMD_UNIT=gpushare-lease-red-1.service + OBJECT_SYSTEMD_UNIT=gpushare-lease-red-1.service _UID=0",
		"MESSAGE --follow --after-cursor=c2 --lines=all _SYSTEMD_UNIT=",
		"MESSAGE --after-cursor=c2 --lines=all _SYSTEMD_UNIT=",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("its arguments lack %q:\n%s", want, b)
		}
	}
}

// The last lines are searched from the end, because journalctl counts from --since on in systemd 252.
func TestOutputOfTheLastLines(t *testing.T) {
	two := `{"__CURSOR":"c9","MESSAGE":"nine"}` + "\n" + `{"__CURSOR":"c8","MESSAGE":"eight"}`
	for _, c := range []struct {
		name, backwards string
		lines           int
		queries, reads  string
	}{
		{"two", two, 2, "--reverse --since=@1000 --lines=2 ", "--cursor=c8 --lines=all "},
		{"none of those before", `{"__CURSOR":"c9","MESSAGE":"nine"}`, 0, "--reverse --since=@1000 --lines=1 ", "--after-cursor=c9 --lines=all "},
		{"nothing was printed", "", 3, "--reverse --since=@1000 --lines=3 ", "--since=@1000 --lines=all "},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, arguments := journalctl(t, c.backwards, "", `{"__CURSOR":"c9","MESSAGE":"as requested"}`)
			a := &Adapter{prefix: "gpushare", journalctl: program}
			var shown bytes.Buffer
			if err := a.Output(within(t, 20*time.Second), "red-1", time.Unix(1000, 0), c.lines, nil, &shown); err != nil ||
				shown.String() != "as requested\n" {
				t.Errorf("%v, shown: %q", err, shown.String())
			}
			b, err := os.ReadFile(arguments)
			if err != nil {
				t.Fatal(err)
			}
			calls := strings.Split(strings.TrimSpace(string(b)), "\n")
			if len(calls) != 3 || !strings.Contains(calls[1], c.queries) || strings.Contains(calls[2], "--reverse") ||
				!strings.Contains(calls[2], c.reads) {
				t.Errorf("its arguments:\n%s", b)
			}
		})
	}
}

// When the writer fails, the reading ends.
func TestOutputEndsWithItsReader(t *testing.T) {
	program, _ := journalctl(t, "", `{"__CURSOR":"c1","MESSAGE":"one"}`, "")
	a := &Adapter{prefix: "gpushare", journalctl: program}
	if err := a.Output(within(t, 20*time.Second), "red-1", time.Now(), -1, make(chan struct{}), broken{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }
