package fuse

import (
	"context"
	"os"
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
	fs, conn := served(t)
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
	if _, ok := waiting(t, conn.Number); ok {
		t.Error("its request still waits")
	}
	fs.Stop()
	if err := control(t).Abort(conn); err != nil {
		t.Errorf("a connection that has ended: %v", err)
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

// The servers of a connection are found by its number. Where the kernel has none, they are those whose descriptor has ended with it.
func TestServers(t *testing.T) {
	t.Parallel()
	fs, conn := served(t)
	_, bystander := served(t)
	find := func(numbers map[uint32]bool) map[int]Server {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		out := map[int]Server{}
		servers, all := Servers(ctx, []uint32{user}, numbers)
		if !all {
			t.Error("not every process was read")
		}
		for _, s := range servers {
			out[s.PID] = s
		}
		return out
	}
	found := find(map[uint32]bool{conn.Number: true})
	s, ok := found[fs.PID]
	if !ok || s.Connection == 0 { // An older kernel has no number: then all of the user are listed.
		if s, ok = find(nil)[fs.PID]; !ok {
			t.Fatalf("the server %d is not among %+v", fs.PID, found)
		}
	} else if len(found) != 1 {
		t.Errorf("the servers are %+v", found)
	}
	if s.Aborted() {
		t.Error("its connection has ended")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, all := Servers(ended, []uint32{user}, nil); all {
		t.Error("every process was read, although there was no time")
	}
	if err := control(t).Abort(conn); err != nil {
		t.Fatal(err)
	}
	if !s.Aborted() {
		t.Error("its connection has not ended")
	}
	for _, s := range find(map[uint32]bool{bystander.Number: true}) {
		if s.Aborted() {
			t.Error("another connection has ended")
		}
	}
}
