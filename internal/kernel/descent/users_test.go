package descent

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
)

const (
	alice = 471001
	bob   = 471002
)

// bounded opens a record with places for 8 processes of each user. alice has the leases one and more, bob has two.
func bounded(t *testing.T) *Record {
	t.Helper()
	r := reopened(t, "", 8*partOfUser)
	users := map[string]int{"one": alice, "more": alice, "two": bob}
	r.UserOf = func(lease string) (int, bool) { uid, ok := users[lease]; return uid, ok }
	return r
}

// forks starts a process in a lease, which starts others. stop ends all of them.
func forks(t *testing.T, r *Record, lease string, n int) (stop func()) {
	t.Helper()
	cmd, start := shell(t, fmt.Sprintf("for i in $(seq %d); do sleep 600 >/dev/null & done; echo $!; read -r x", n))
	if _, err := r.Add(lease, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	start()
	return func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // It was killed.
	}
}

// lostOf is how many processes were lost: because the record was full, and of each user.
func lostOf(t *testing.T, r *Record) (uint64, map[int]uint64) {
	t.Helper()
	all, users, err := r.Lost()
	if err != nil {
		t.Fatal(err)
	}
	return all, users
}

// A user who forks without end has a part of the record, with all leases together. The processes of others are recorded, and what is not
// is counted to the user.
func TestAUserWhoForksWithoutEnd(t *testing.T) {
	t.Parallel()
	r := bounded(t)
	const many = 100
	stop := forks(t, r, "one", many)
	const few = 5
	forks(t, r, "two", few)
	if n := len(members(t, r, "one")); n != 8 {
		t.Errorf("%d processes of the user are recorded, want 8", n)
	}
	if n := len(members(t, r, "two")); n != few+1 {
		t.Errorf("%d processes of another user are recorded, want %d", n, few+1)
	}
	all, users := lostOf(t, r)
	if all != 0 || users[bob] != 0 || users[alice] != many+1-8 {
		t.Errorf("%d are lost, and of users %v", all, users)
	}
	// Another lease of the same user, which the daemon adds.
	forks(t, r, "more", 1)
	if n := len(members(t, r, "more")); n != 0 {
		t.Errorf("%d processes of another lease of the user are recorded", n)
	}
	if _, users := lostOf(t, r); users[alice] <= many+1-8 || users[bob] != 0 {
		t.Errorf("with another lease are lost of users: %v", users)
	}
	// When they have ended there are places again.
	stop()
	await(t, "an ended process is still recorded", func() bool { return len(members(t, r, "one")) == 0 })
	forks(t, r, "more", few)
	if n := len(members(t, r, "more")); n != few+1 {
		t.Errorf("after the end of the others %d processes are recorded, want %d", n, few+1)
	}
}

// The processes that have ended take no place: a build has thousands, a few at a time.
func TestProcessesOneAfterTheOther(t *testing.T) {
	t.Parallel()
	r := bounded(t)
	cmd, start := shell(t, "for i in $(seq 200); do (exec true); done; sleep 60 >/dev/null & echo $!; wait")
	if _, err := r.Add("one", cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	last := start()
	if all := members(t, r, "one"); all[last] == 0 {
		t.Errorf("the last process, %d, is not recorded: %v", last, all)
	}
	if all, users := lostOf(t, r); all != 0 || len(users) != 0 {
		t.Errorf("%d are lost, and of users %v", all, users)
	}
}

// A daemon that starts knows nothing of what its programs have counted: it counts what is pinned, and the bound includes that.
func TestCountsOfAnEarlierDaemon(t *testing.T) {
	t.Parallel()
	dir := bpffs(t)
	users := func(string) (int, bool) { return alice, true }
	first, err := open(dir, 8*partOfUser)
	if err != nil {
		t.Fatal(err)
	}
	first.UserOf = users
	forks(t, first, "one", 5)
	info, err := first.fork.program.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := reopened(t, dir, 8*partOfUser)
	second.UserOf = users
	// The kernel detaches the earlier program a moment after it was replaced. Until then it records, too.
	await(t, "the earlier program still runs", func() bool {
		p, err := ebpf.NewProgramFromID(id)
		if err == nil {
			_ = p.Close()
		}
		return errors.Is(err, fs.ErrNotExist)
	})
	if n := len(members(t, second, "one")); n != 6 {
		t.Errorf("%d processes are recorded, want 6", n)
	}
	forks(t, second, "more", 4)
	if n := len(members(t, second, "more")); n != 2 {
		t.Errorf("%d processes of another lease are recorded, want 2", n)
	}
}

// Nothing is kept of a lease without a process, nor of its user.
func TestUsersWithoutLeasesAreForgotten(t *testing.T) {
	t.Parallel()
	r := bounded(t)
	stop := forks(t, r, "one", 20)
	members(t, r, "one")
	stop()
	await(t, "the user is still counted", func() bool {
		members(t, r, "one")
		var uid uint32
		counted := r.bounds.users.NextKey(nil, &uid) == nil || r.bounds.refused.NextKey(nil, &uid) == nil
		return !counted && len(r.bounds.known) == 0
	})
}
