package leftover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// within is how long the supervisor tries to end everything.
const within = time.Minute

// started is what the first process has reported.
type started struct {
	token    []byte
	first    int    // its pid
	since    uint64 // its start time: nothing that is older is its
	places   []Place
	children map[int]uint64 // start times
}

// supervise waits for the end of a process, given as PID:START, and ends what it has started. It is the whole program.
func supervise(who string) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	s := started{token: []byte(tokenEnv + "=" + who), children: map[int]uint64{}}
	if _, err := fmt.Sscanf(who, "%d:%d", &s.first, &s.since); err != nil {
		return 2
	}
	go s.endWithGo()
	for in := json.NewDecoder(os.Stdin); ; {
		var m message
		if in.Decode(&m) != nil {
			break // It has ended, whatever it was about to say.
		}
		s.take(m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if !s.end(ctx) {
		return 1
	}
	return 0
}

// endWithGo kills the first process when the go command has ended that started it with 'go test' or 'go run': no program waits for it
// any longer, and it may run for many minutes. The rest follows.
func (s *started) endWithGo() {
	first, err := procfs.OpenPidfd(s.first, s.since)
	if err != nil {
		return // It has ended.
	}
	defer first.Close()
	stat, err := procfs.Read(s.first)
	if err != nil {
		return
	}
	parent, err := procfs.Read(stat.PPID)
	if err != nil || parent.Name != "go" {
		return
	}
	p, err := procfs.OpenPidfd(parent.PID, parent.Start)
	if err == nil {
		defer p.Close()
		err = p.Wait(context.Background())
	}
	if err == nil || errors.Is(err, procfs.ErrNoProcess) {
		_ = first.Signal(context.Background(), unix.SIGKILL) // It may have ended too.
	}
}

func (s *started) take(m message) {
	switch {
	case m.Keep != nil:
		s.places = append(s.places, *m.Keep)
	case m.Drop != "":
		s.places = slices.DeleteFunc(s.places, func(p Place) bool { return p.Dir == m.Drop })
	case m.Child != 0:
		s.children[m.Child] = m.Start
	}
}

// end kills until nothing is left, because a process may start another one in between, and then removes the places.
func (s *started) end(ctx context.Context) bool {
	for {
		for _, p := range s.places {
			killCgroup(p.Cgroup)
		}
		found, err := s.find()
		if err == nil && len(found) == 0 {
			break
		}
		for _, p := range found {
			kill(ctx, p)
		}
		if ctx.Err() != nil {
			return false
		}
	}
	ok := true
	for _, p := range s.places {
		ok = s.remove(p) && ok
	}
	return ok
}

// kill waits for the end only shortly: a process that cannot end now keeps the others waiting no longer.
func kill(ctx context.Context, s procfs.Stat) {
	p, err := procfs.OpenPidfd(s.PID, s.Start)
	if err != nil {
		return
	}
	defer p.Close()
	if p.Signal(ctx, unix.SIGKILL) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = p.Wait(ctx)
}

// find finds what the first process has started.
func (s *started) find() ([]procfs.Stat, error) {
	all, err := procfs.All()
	if err != nil {
		return nil, fmt.Errorf("cannot look for what is left: %w", err)
	}
	all = slices.DeleteFunc(all, func(p procfs.Stat) bool {
		return p.Dead() || p.Start < s.since || p.PID == s.first || p.PID == os.Getpid()
	})
	mine, others := map[int]bool{}, map[int]bool{}
	for _, p := range all {
		start, reported := s.children[p.PID]
		named, supervisor := s.names(p)
		mine[p.PID], others[p.PID] = reported && start == p.Start || named, supervisor
	}
	// The supervisor of a test that was started by a test ends what that one has started, and then itself.
	all = slices.DeleteFunc(all, func(p procfs.Stat) bool { return others[p.PID] })
	mine[s.first] = true
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !mine[p.PID] && mine[p.PPID] {
				mine[p.PID], grown = true, true
			}
		}
	}
	return slices.DeleteFunc(all, func(p procfs.Stat) bool { return !mine[p.PID] }), nil
}

// names reports whether the environment or the command line of a process names the token or a place, and whether it is a supervisor.
// One that cannot be read, as those of other users, has no names.
func (s *started) names(p procfs.Stat) (named, supervisor bool) {
	read, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	env, _ := procfs.Environment(read, p.PID)
	if bytes.HasPrefix(env, []byte(environment+"=")) || bytes.Contains(env, []byte("\x00"+environment+"=")) {
		return false, true
	}
	text := append(env, procfs.Command(read, p.PID)...)
	if bytes.Contains(text, s.token) {
		return true, false
	}
	return slices.ContainsFunc(s.places, func(place Place) bool {
		at := bytes.Index(text, []byte(place.Dir))
		return at >= 0 && (at+len(place.Dir) == len(text) || bytes.IndexByte([]byte("/\x00 "), text[at+len(place.Dir)]) >= 0)
	}), false
}

// killCgroup kills the processes of a cgroup. Without cgroup.kill, which is of Linux 5.14, the others find most of them.
func killCgroup(dir string) {
	if dir != "" {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	}
}

// remove removes the cgroup, what is mounted below the directory, and the directory.
func (s *started) remove(p Place) bool {
	ok := true
	if p.Cgroup != "" {
		var dirs []string
		_ = filepath.WalkDir(p.Cgroup, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) {
			ok = os.Remove(d) == nil && ok
		}
	}
	var mounts []string
	_ = procfs.WalkMounts(os.Getpid(), func(m procfs.Mount) {
		if len(m.Point) > len(p.Dir) && m.Point[:len(p.Dir)+1] == p.Dir+"/" {
			mounts = append(mounts, m.Point)
		}
	})
	for _, m := range slices.Backward(mounts) {
		ok = unix.Unmount(m, unix.MNT_DETACH) == nil && ok
	}
	if p.Remove {
		ok = os.RemoveAll(p.Dir) == nil && ok
	}
	return ok
}
