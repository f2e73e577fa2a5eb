package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs/procfstest"
	"github.com/gpushare/gpushare/test/programs"
	"golang.org/x/sys/unix"
)

// fakeJournal is a journal in a file, with a journalctl that reads it.
type fakeJournal struct {
	dir   string
	lines int
}

func newFakeJournal(t *testing.T) (*fakeJournal, *Adapter) {
	t.Helper()
	j := &fakeJournal{dir: t.TempDir()}
	// Its options are those of journalctl(1) that package systemd uses. Each process that follows leaves its pid.
	script := `#!/bin/sh
cd '` + j.dir + `'
first=1; follow=
for a; do case $a in
--sync) exit 0 ;;
--follow) follow=-f; echo $$ >>following ;;
--after-cursor=*) first=$((${a#*=} + 1)) ;;
esac; done
exec tail -n +$first $follow journal
`
	if err := errors.Join(
		os.WriteFile(filepath.Join(j.dir, "journal"), nil, 0o600),
		programs.Write(filepath.Join(j.dir, "journalctl"), script),
	); err != nil {
		t.Fatal(err)
	}
	return j, &Adapter{prefix: "gpushare", journalctl: filepath.Join(j.dir, "journalctl")}
}

// print adds lines; the cursor of each is its number.
func (j *fakeJournal) print(t *testing.T, count int, text string) {
	t.Helper()
	var b bytes.Buffer
	for range count {
		j.lines++
		fmt.Fprintf(&b, `{"__CURSOR":"%d","MESSAGE":"line %d%s"}`+"\n", j.lines, j.lines, text)
	}
	f, err := os.OpenFile(filepath.Join(j.dir, "journal"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(b.Bytes())
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// followed lists the processes that followed so far.
func (j *fakeJournal) followed(t *testing.T) (pids []int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(j.dir, "following"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range strings.Fields(string(b)) {
		var pid int
		if _, err := fmt.Sscan(s, &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// seen is what one follower got. Its writes wait while stalled is held.
type seen struct {
	stalled sync.Mutex

	mu   sync.Mutex // guards what follows
	text strings.Builder
	more chan struct{} // is closed at the next write
}

func (s *seen) Write(b []byte) (int, error) {
	s.stalled.Lock()
	defer s.stalled.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.more)
	s.more = make(chan struct{})
	return s.text.Write(b)
}

func (s *seen) await(t *testing.T, suffix string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		text, more := s.text.String(), s.more
		s.mu.Unlock()
		if strings.HasSuffix(text, suffix) {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("it got %d bytes, and not %q", len(text), suffix)
		}
	}
}

// following is a call of Output.
type following struct {
	seen
	result chan error
}

func follow(t *testing.T, a *Adapter, ended chan struct{}) *following {
	f := &following{seen: seen{more: make(chan struct{})}, result: make(chan error, 1)}
	go func() { f.result <- a.Output(t.Context(), "one", time.Now(), -1, ended, f) }()
	return f
}

func numbers(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

// Followers of one lease share one process, and each gets every line once, whenever it begins. The process ends with the last one.
func TestFollowersShareOneReader(t *testing.T) {
	j, a := newFakeJournal(t)
	ended := make(chan struct{})
	var all []*following
	for range 8 {
		j.print(t, 3, "")
		f := follow(t, a, ended)
		j.print(t, 3, "")
		all = append(all, f)
		if len(all) == 4 {
			f.await(t, fmt.Sprintf("line %d\n", j.lines))
		}
	}
	for _, f := range all {
		f.await(t, fmt.Sprintf("line %d\n", j.lines))
	}
	pids := j.followed(t)
	if len(pids) != 1 {
		t.Errorf("%d processes follow", len(pids))
	}
	j.print(t, 2, "")
	close(ended)
	for i, f := range all {
		if err := <-f.result; err != nil {
			t.Errorf("follower %d: %v", i, err)
		}
		if got := f.text.String(); got != numbers(1, j.lines) {
			t.Errorf("follower %d got %q", i, got)
		}
	}
	procfstest.AwaitEnd(t, pids[0])
	if len(a.followers.all) > 0 {
		t.Errorf("%d readers are left", len(a.followers.all))
	}
}

// A follower that does not read is dropped, and its output says so; the others get everything.
func TestSlowFollowerIsDropped(t *testing.T) {
	j, a := newFakeJournal(t)
	j.print(t, 1, "")
	ended := make(chan struct{})
	slow, other := follow(t, a, ended), follow(t, a, ended)
	slow.await(t, "line 1\n")
	other.await(t, "line 1\n")
	j.print(t, 1, "")
	slow.await(t, "line 2\n") // From here on both follow.
	other.await(t, "line 2\n")
	slow.stalled.Lock()
	long := strings.Repeat("x", 1000)
	for range 5 { // Five times what it may leave unread, at a pace that the other one keeps.
		j.print(t, maxUnread/1000, long)
		other.await(t, fmt.Sprintf("line %d%s\n", j.lines, long))
	}
	slow.stalled.Unlock()
	if err := <-slow.result; !errors.Is(err, errSlow) {
		t.Errorf("the slow follower ended with %v", err)
	}
	if got := slow.text.String(); !strings.HasSuffix(got, "\n"+slowNotice+"\n") {
		t.Errorf("its output ends with %.200q", got[max(0, len(got)-200):])
	}
	close(ended)
	if err := <-other.result; err != nil {
		t.Error(err)
	}
	if got := strings.Count(other.text.String(), "\n"); got != j.lines {
		t.Errorf("the other one got %d lines of %d", got, j.lines)
	}
}

// When the journal cannot be followed any more, each follower fails: its output is not complete.
func TestFollowersFailWithTheirReader(t *testing.T) {
	j, a := newFakeJournal(t)
	j.print(t, 1, "")
	f := follow(t, a, make(chan struct{}))
	f.await(t, "line 1\n")
	j.print(t, 1, "")
	f.await(t, "line 2\n")
	if err := unix.Kill(j.followed(t)[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-f.result; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
