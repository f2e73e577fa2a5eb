package fuse

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/silentfs"
)

func TestMain(m *testing.M) {
	silentfs.Main()
	os.Exit(m.Run())
}

const user = 54330

// served starts a file system with a request that waits for its server.
func served(t *testing.T) (*silentfs.Server, Connection) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	fs := silentfs.Start(t, user)
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, fs.Dir, unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		var st unix.Stat_t
		done <- unix.Lstat(fs.Path(silentfs.Lost), &st)
	}()
	t.Cleanup(func() {
		fs.Stop()
		<-done
	})
	fs.AwaitSilent(t)
	return fs, Connection{Number: NumberOf(st.Dev_major, st.Dev_minor), Owner: user, Waiting: 1}
}

func control(t *testing.T) *Control {
	t.Helper()
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// waiting returns a connection as the control files show it.
func waiting(t *testing.T, number uint32) (Connection, bool) {
	t.Helper()
	all, err := control(t).Waiting()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Number == number {
			return c, true
		}
	}
	return Connection{}, false
}

func TestAbort(t *testing.T) {
	t.Parallel()
	_, conn := served(t)
	if got, ok := waiting(t, conn.Number); !ok || got != conn {
		t.Fatalf("the connection is %+v, want %+v", got, conn)
	}
	other := conn
	other.Owner++
	if err := control(t).Abort(other); err == nil {
		t.Error("the connection of another user was aborted")
	}
	if _, ok := waiting(t, conn.Number); !ok {
		t.Error("its request does not wait any more")
	}
	if err := control(t).Abort(conn); err != nil {
		t.Fatal(err)
	}
	// The kernel counts a request until its process has run.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, ok := waiting(t, conn.Number); !ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("its request still waits")
		}
	}
}

// The number of a connection that has ended may be the next one's at once: the highest one is never given to a connection.
func TestAbortOfAConnectionThatHasEnded(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if err := control(t).Abort(Connection{Number: NumberOf(0, 1<<20-1), Owner: user, Waiting: 1}); err != nil {
		t.Error(err)
	}
}

// The mount of the control files is attached nowhere: no process sees it.
func TestTheControlFilesAreNotMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	before := Mounted()
	control(t)
	if Mounted() != before {
		t.Errorf("%s is mounted now", ControlFiles)
	}
}

// search finds the servers of a user.
func search(t *testing.T, uid uint32, numbers map[uint32]bool) Found {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return Servers(ctx, []uint32{uid}, numbers)
}

// The servers of a connection are found by its number. Where the kernel has none, those that may be are.
func TestServers(t *testing.T) {
	t.Parallel()
	fs, conn := served(t)
	served(t) // a bystander
	found := search(t, user, map[uint32]bool{conn.Number: true})
	if !found.All {
		t.Error("not every process was read")
	}
	isIt := func(s Server) bool { return s.PID == fs.PID }
	if !fs.Numbered(t) {
		if len(found.Servers) != 0 || !slices.ContainsFunc(found.Possible, isIt) {
			t.Errorf("the kernel does not report it: %+v", found)
		}
	} else if len(found.Servers) != 1 || !isIt(found.Servers[0]) || found.Servers[0].Connection != conn.Number || len(found.Possible) != 0 {
		t.Errorf("the server %d is not alone: %+v", fs.PID, found)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if Servers(ended, []uint32{user}, nil).All {
		t.Error("every process was read, although there was no time")
	}
}

// have starts processes of a user that have a file open.
func have(t *testing.T, uid uint32, file *os.File, count int) {
	t.Helper()
	for range count {
		cmd := exec.Command("sleep", "600")
		cmd.ExtraFiles = []*os.File{file}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // A signal ends it.
	}
}

// Files that only have the name of the device are no servers, and do not fill the list. A list that is full says so.
func TestTheListOfServersIsBounded(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	const uid = user + 1
	named := filepath.Join(t.TempDir(), "dev/fuse")
	if err := os.Mkdir(filepath.Dir(named), 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(named)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	have(t, uid, file, mostServers+1)
	if found := search(t, uid, nil); len(found.Servers) != 0 || len(found.Possible) != mostPossible || !found.All {
		t.Errorf("files with the name of the device: %d servers, %d possible, all %v", len(found.Servers), len(found.Possible), found.All)
	}
	dir, conn := silentfs.Mounted(t, uid)
	defer conn.Close()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		t.Fatal(err)
	}
	have(t, uid, conn, mostServers+1)
	found := search(t, uid, map[uint32]bool{NumberOf(st.Dev_major, st.Dev_minor): true})
	if len(found.Servers) == 0 && len(found.Possible) > 0 {
		t.Skip("the kernel does not report which process has a connection open")
	}
	if len(found.Servers) != mostServers || len(found.Possible) != 0 || found.All {
		t.Errorf("%d servers, %d possible, all %v", len(found.Servers), len(found.Possible), found.All)
	}
}

func TestParseConnection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fdinfo string
		want   uint32
	}{
		{"pos:\t0\nflags:\t0100002\nmnt_id:\t23\nino:\t9\nfuse_connection:\t45\n", 45},
		{"pos:\t0\nflags:\t0100002\nmnt_id:\t23\nino:\t9\n", 0},
		{"fuse_connection:\tx\n", 0},
		{"", 0},
	} {
		if got := parseConnection(c.fdinfo); got != c.want {
			t.Errorf("%q: %d, want %d", c.fdinfo, got, c.want)
		}
	}
	for link, want := range map[string]bool{"/dev/fuse": true, "/srv/root/dev/fuse": true, "/home/x/fuse": false, "/dev/fuse (deleted)": false, "socket:[7]": false} {
		if isDevice(link) != want {
			t.Errorf("%q is the device: %v", link, !want)
		}
	}
}
