package control

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/acl"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/mps"
)

// Reach is which users and groups may reach the tenants' socket of a GPU, next to root.
type Reach struct {
	Users, Groups []int
	Left          []int // users who left one of Groups: their processes may still have it
}

// ErrOpen says that every user of the host reaches the tenants' socket, because a directory cannot be restricted to some.
var ErrOpen = errors.New("every user of the host reaches it")

// access is who reaches the files of one control daemon.
type access struct {
	mu       locks.Mutex[locks.MPSAccess] // guards what follows, and one change of permissions at a time
	desired  Reach
	admitted map[int]time.Time   // users whose lease may not be in desired, with the time
	applied  map[string]acl.List // what was set and read back, by path
}

// permission is what one file or directory of a control daemon should have.
type permission struct {
	path, name string
	list       acl.List
}

// permissions lists what the files should have, before the directories that lead to them. The control daemon makes most of them
// open to all.
//
// A server that runs as the user of its clients changes its uid alone: it keeps the group of root, and has no other way to the
// control socket and to its log. Seen with the control programs of 535.261.03 and 550.163.01.
func (l layout) permissions(r Reach, single bool) []permission {
	pipe, log := os.FileMode(0o700), os.FileMode(0o600)
	if single {
		pipe, log = 0o710, 0o620
	}
	in := func(name string, mode os.FileMode, text string) permission {
		return permission{filepath.Join(l.pipe(), name), text, acl.Of(mode)}
	}
	return []permission{
		in("log", log, "the log FIFO"),
		in("control_lock", 0o600, "the lock file"),
		in("nvidia-cuda-mps-control.pid", 0o644, "the pid file"),
		in("control_privileged", 0o755, "the privileged socket"),
		in("control", 0o666, "the control socket"),
		{filepath.Dir(l.dir), "the directory of MPS", acl.Of(directoryMode)},
		{l.dir, "the directory of the GPU", acl.Of(directoryMode)},
		{l.kept(), "the directory of links", acl.Of(0o700)},
		{l.logs(), "the log directory", acl.Of(0o700)},
		{l.pipe(), "the privileged directory", acl.Of(pipe)},
		{l.tenant(), "the tenants' directory", r.list()},
	}
}

// list lets these users and groups search a directory.
func (r Reach) list() acl.List {
	l := acl.Of(0o700)
	for group, ids := range map[bool][]int{false: r.Users, true: r.Groups} {
		for _, id := range ids {
			l.Named = append(l.Named, acl.Named{Group: group, ID: uint32(id), Perm: 1})
		}
	}
	if len(r.Groups) > 0 {
		for _, id := range r.Left { // The entry of a user comes before those of groups.
			if !slices.Contains(r.Users, id) {
				l.Named = append(l.Named, acl.Named{ID: uint32(id)})
			}
		}
	}
	if len(l.Named) > 0 {
		l.Mask = 1
		l.Sort()
		l.Named = slices.Compact(l.Named)
	}
	return l
}

// Restrict lets only these users and groups reach the socket of a GPU's control daemon, and no user its other files. asOf is the time
// before the leases were read for it: who was admitted since then keeps the access too. It reads all files, and reads back what it has
// set. changed says what had been changed from outside. The error is ErrOpen when the socket is open to all nevertheless; a file that
// cannot be set does not keep it from the others.
func (s *Supervisor) Restrict(id mps.Device, r Reach, asOf time.Time) (changed []string, err error) {
	a := &s.gpuState(id).access
	a.mu.Lock()
	defer a.mu.Unlock()
	a.desired = r
	maps.DeleteFunc(a.admitted, func(_ int, at time.Time) bool { return at.Before(asOf) })
	return s.restrictLocked(id, a)
}

// Admit lets a user whose lease has a place and starts reach the socket.
func (s *Supervisor) Admit(id mps.Device, uid int) error {
	a := &s.gpuState(id).access
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.admitted == nil {
		a.admitted = map[int]time.Time{}
	}
	a.admitted[uid] = s.Now()
	if _, err := s.restrictLocked(id, a); err != nil && !errors.Is(err, ErrOpen) {
		return fmt.Errorf("cannot let user %d reach MPS on %s: %w", uid, id, err)
	}
	return nil
}

// restrictStarted restricts the files that a control daemon has just made.
func (s *Supervisor) restrictStarted(id mps.Device) error {
	a := &s.gpuState(id).access
	a.mu.Lock()
	defer a.mu.Unlock()
	a.applied = nil
	if _, err := s.restrictLocked(id, a); err != nil && !errors.Is(err, ErrOpen) {
		return err
	}
	return nil
}

func (s *Supervisor) restrictLocked(id mps.Device, a *access) (changed []string, err error) {
	l := s.layout(id)
	rec := l.readRecord()
	if rec == nil {
		a.applied = nil
		return nil, nil
	}
	r := Reach{Users: slices.Clone(a.desired.Users), Groups: a.desired.Groups, Left: a.desired.Left}
	for uid := range a.admitted {
		if uid != 0 {
			r.Users = append(r.Users, uid)
		}
	}
	if a.applied == nil {
		a.applied = map[string]acl.List{}
	}
	var errs []error
	for _, p := range l.permissions(r, rec.SingleUser) {
		was, is, owner, err := p.ensure()
		if errors.Is(err, os.ErrNotExist) {
			continue // Not every version makes each of them.
		}
		if err != nil {
			errs = append(errs, err)
		}
		if err != nil && !errors.Is(err, ErrOpen) {
			delete(a.applied, p.path)
			continue
		}
		foreign := owner != os.Geteuid()
		if last, known := a.applied[p.path]; foreign || known && !was.Equal(last) || !known && !was.Equal(is) {
			had := describe(was)
			if foreign {
				had += " and belonged to uid " + strconv.Itoa(owner)
			}
			changed = append(changed, fmt.Sprintf("%s had %s, it has %s", p.name, had, describe(is)))
		}
		a.applied[p.path] = is
	}
	return changed, errors.Join(errs...)
}

// ensure makes a file have its permissions and gpushared as its owner, and reads the permissions back. It writes nothing if it has
// them. owner is the former one.
func (p permission) ensure() (was, is acl.List, owner int, err error) {
	if was, err = acl.Read(p.path); err != nil {
		return was, is, owner, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(p.path, &st); err != nil {
		return was, is, owner, &os.PathError{Op: "lstat", Path: p.path, Err: err}
	}
	owner = int(st.Uid)
	if owner != os.Geteuid() || p.list.Group != 0 && int(st.Gid) != os.Getegid() {
		// The unit of gpushared has no CAP_CHOWN: only root gives such a file away, and only root takes it back.
		if err := os.Lchown(p.path, os.Geteuid(), os.Getegid()); err != nil {
			return was, is, owner, fmt.Errorf(
				"cannot restrict %s: it belongs to uid %d: run 'chown root:root %s': %w", p.path, owner, p.path, err,
			)
		}
	}
	if was.Equal(p.list) {
		return was, p.list, owner, nil
	}
	desired := p.list
	err = acl.Write(p.path, desired)
	var open error
	if errors.Is(err, acl.ErrUnsupported) {
		open = fmt.Errorf("cannot restrict %s: %w: %w", p.path, acl.ErrUnsupported, ErrOpen)
		desired, err = acl.Of(0o711), nil
		if !was.Equal(desired) {
			err = acl.Write(p.path, desired)
		}
	}
	if err != nil {
		return was, is, owner, err
	}
	if is, err = acl.Read(p.path); err != nil {
		return was, is, owner, err
	}
	if !is.Equal(desired) {
		return was, is, owner, fmt.Errorf("%s has %s after it was set to %s", p.path, describe(is), describe(desired))
	}
	return was, is, owner, open
}

// describe describes a list: "mode 0710 for uids 1000, 1001 for gids 50".
func describe(l acl.List) string {
	out := fmt.Sprintf("mode %04o", l.Mode())
	var users, groups []string
	for _, n := range l.Named {
		if n.Group {
			groups = append(groups, strconv.Itoa(int(n.ID)))
		} else {
			users = append(users, strconv.Itoa(int(n.ID)))
		}
	}
	for _, some := range []struct {
		what string
		ids  []string
	}{{"uids", users}, {"gids", groups}} {
		if len(some.ids) > 0 {
			out += " for " + some.what + " " + strings.Join(some.ids, ", ")
		}
	}
	return out
}
