package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/gpushare/gpushare/internal/faultpoint"
	"github.com/gpushare/gpushare/internal/locks"
)

// The files of the directory.
const (
	current  = "state.json"
	previous = "state.previous.json"
	fresh    = "state.json.new"     // being written
	linked   = "state.previous.new" // becoming the previous
	reserve  = "reserve"            // blocks kept for the write that closes a change
	corrupt  = "state.corrupt-%d"   // quarantined
)

// Store is the state on disk. Open opens it; Close unlocks the directory.
type Store struct {
	d     dir
	path  string   // of the directory, for messages
	locks []locked // none in tests with a directory of their own

	state  atomic.Pointer[State]
	writes atomic.Uint64

	mu    locks.Mutex[locks.Store] // guards what follows, and that there is one writer
	file  []byte                   // the content of state.json; nil when it must be written even without a change
	spare int64                    // the size of the reserve; 0 without one
	// written: the file was read or written, so that its absence means that it was removed.
	written bool
	removed []string // names that were found removed, and are not reported yet
}

// Report is what Open found.
type Report struct {
	Fresh       bool     // there was no state: a new node
	FellBack    bool     // the state is the one before the last
	Lost        bool     // there was a state and nothing of it could be read
	Quarantined []string // damaged files, by their new names
	Reason      string   // what was wrong, one sentence; empty when nothing was
}

// Open locks the directory, which is created if missing, and others that one daemon alone may use, and reads the state.
// ErrLocked: another daemon uses one of them.
// ErrNewerFormat, ErrOlderFormat: another version wrote it, and no file was changed. Damage is no error: it is in the report.
func Open(path string, others ...string) (_ *Store, _ Report, err error) {
	var locks []locked
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(locks))
		}
	}()
	for _, other := range others {
		l, err := lockDir(other)
		if err != nil {
			return nil, Report{}, err
		}
		locks = append(locks, l)
	}
	d, err := openDir(path, stateMode)
	if err != nil {
		return nil, Report{}, fmt.Errorf("cannot open %s: %w", path, err)
	}
	l, err := take(d, path, stateMode)
	if err != nil {
		return nil, Report{}, fmt.Errorf("cannot lock %s: %w", path, errors.Join(err, d.root.Close()))
	}
	s, report, err := open(d)
	if err != nil {
		return nil, report, fmt.Errorf("cannot read the state in %s: %w", path, errors.Join(err, l.lock.Close(), d.root.Close()))
	}
	s.locks, s.path = append(locks, l), path
	return s, report, nil
}

// Path is the directory of the state.
func (s *Store) Path() string { return s.path }

// Peek reads the state without locking the directory and without writing, while the daemon does not run. os.ErrNotExist:
// there is no state. Damage is an error here.
func Peek(path string) (*State, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	defer root.Close()
	s := &Store{d: osDir{root}}
	found, err := s.read(current)
	if errors.Is(err, errCorrupt) {
		found, err = s.read(previous)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the state in %s: %w", path, err)
	}
	return found, nil
}

func closeAll(all []locked) error {
	var errs []error
	for i := range all {
		errs = append(errs, all[i].lock.Close())
	}
	return errors.Join(errs...)
}

// Close unlocks the directory. The store must not be used afterwards.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := []error{closeAll(s.locks)}
	s.locks = nil
	if d, ok := s.d.(osDir); ok {
		errs = append(errs, d.root.Close())
	}
	return errors.Join(errs...)
}

// open reads the newest undamaged state.
func open(d dir) (*Store, Report, error) {
	s := &Store{d: d}
	var r Report
	found := &State{}
	last, lastErr := s.read(current)
	switch {
	case lastErr == nil:
		found = last
	case errors.Is(lastErr, errCorrupt), errors.Is(lastErr, os.ErrNotExist):
		before, err := s.read(previous)
		switch {
		case err == nil:
			found, r.FellBack = before, true
			r.Reason = fmt.Sprintf("%s could not be used (%v): the previous state is used", current, lastErr)
		case errors.Is(err, os.ErrNotExist) && errors.Is(lastErr, os.ErrNotExist):
			r.Fresh = true
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, errCorrupt):
			r.Lost = true
			r.Reason = fmt.Sprintf("the state could not be read (%v; the previous one: %v): the node is taken as it is", lastErr, err)
		default:
			return nil, r, err
		}
		// Only now: no file may be changed when another version wrote one of them, or when reading fails.
		for _, damaged := range []struct {
			name string
			err  error
		}{{current, lastErr}, {previous, err}} {
			if errors.Is(damaged.err, errCorrupt) {
				name, err := s.quarantine(damaged.name)
				if err != nil {
					return nil, r, err
				}
				r.Quarantined = append(r.Quarantined, name)
			}
		}
	default:
		return nil, r, lastErr
	}
	s.state.Store(found)
	if lastErr == nil {
		b, err := marshal(found)
		if err != nil {
			return nil, r, err
		}
		s.file, s.written = b, true
	}
	s.findReserve()
	return s, r, nil
}

// findReserve verifies an existing reserve: allocating allocated blocks again needs no space.
func (s *Store) findReserve() {
	f, err := s.d.Open(reserve, os.O_RDONLY)
	if err != nil {
		return // the next Update creates one
	}
	size, err := f.Size()
	if err = errors.Join(err, f.Close()); err != nil || size == 0 {
		return
	}
	if s.allocate(size) == nil {
		s.spare = size
	}
}

func (s *Store) read(name string) (*State, error) {
	b, err := readFile(s.d, name)
	if errors.Is(err, syscall.EIO) {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if err != nil {
		return nil, err
	}
	return unmarshal(b)
}

// quarantine renames a damaged file, so that people can inspect it. It keeps five; the last name is reused.
func (s *Store) quarantine(name string) (string, error) {
	for i := 1; ; i++ {
		to := fmt.Sprintf(corrupt, i)
		f, err := s.d.Open(to, os.O_RDONLY)
		if err == nil && i < 5 {
			if err := f.Close(); err != nil {
				return "", err
			}
			continue
		}
		if err == nil {
			if err := f.Close(); err != nil {
				return "", err
			}
		}
		return to, s.d.Rename(name, to)
	}
}

// State is the state on disk. It is shared and must not be changed.
func (s *Store) State() *State { return s.state.Load() }

// Writes counts the writes of the file. A second converge without changes must not write.
func (s *Store) Writes() uint64 { return s.writes.Load() }

// Update changes the state: f gets a copy, and when f returns nil the copy is on disk before Update returns. Without a
// change nothing is written. On an error the state is as before.
//
// On a full disk Update fails, and leaves the reserve for Finish.
func (s *Store) Update(f func(*State) error) error { return s.update(f, false) }

// Finish is Update for the write that closes a change. On a full disk it uses the reserve, so that a change that has begun
// can be closed.
func (s *Store) Finish(f func(*State) error) error { return s.update(f, true) }

func (s *Store) update(f func(*State) error, closing bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := s.copyLocked()
	if err != nil {
		return err
	}
	if err := f(next); err != nil {
		return err
	}
	b, err := marshal(next)
	if err != nil {
		return err
	}
	if s.file != nil && bytes.Equal(b, s.file) {
		return nil
	}
	if err := s.checkDirectory(); err != nil {
		return fmt.Errorf("cannot save the state: %w", err)
	}
	err = s.writeLocked(b, closing)
	if errors.Is(err, os.ErrNotExist) { // The directory may have been removed: the acknowledged state must not wait for the next pass.
		lost, again := s.revalidateLocked()
		s.removed = append(s.removed, lost...)
		if len(lost) > 0 && again == nil {
			err = s.writeLocked(b, closing)
		}
		err = errors.Join(err, again)
	}
	if err != nil {
		// Whether the rename happened is not known: the next Update writes even if nothing changed.
		s.file = nil
		return fmt.Errorf("cannot save the state: %w", err)
	}
	s.file, s.written = b, true
	s.state.Store(next)
	if closing {
		// The disk may have space again. If not, the next Update fails.
		_ = s.keepReserveLocked(int64(len(b)))
	}
	return nil
}

// writeLocked writes the bytes of a state.
func (s *Store) writeLocked(b []byte, closing bool) error {
	if !closing {
		// What begins now must be able to be closed later.
		if err := s.keepReserveLocked(int64(len(b))); err != nil {
			return err
		}
	}
	err := s.replace(b, fresh, os.O_CREATE|os.O_TRUNC)
	if isFull(err) && closing && s.spare >= int64(len(b)) {
		s.spare = 0
		err = s.replace(b, reserve, 0)
	}
	return err
}

// copyLocked returns a deep copy of the state.
func (s *Store) copyLocked() (*State, error) {
	b, err := json.Marshal(s.state.Load())
	if err != nil {
		return nil, fmt.Errorf("cannot copy the state: %w", err)
	}
	next := &State{}
	if err := json.Unmarshal(b, next); err != nil {
		return nil, fmt.Errorf("cannot copy the state: %w", err)
	}
	return next, nil
}

// replace replaces the current file, which becomes the previous one. At every moment both names refer to a complete file or
// to none.
func (s *Store) replace(b []byte, through string, flag int) error {
	faultpoint.Hit("store.before-write")
	if err := writeFile(s.d, through, flag, b); err != nil {
		return err
	}
	faultpoint.Hit("store.before-previous")
	if err := s.keepPrevious(); err != nil && !isFull(err) {
		return err
	}
	faultpoint.Hit("store.before-rename")
	if err := s.d.Rename(through, current); err != nil {
		return err
	}
	faultpoint.Hit("store.before-sync")
	if err := s.d.Sync(); err != nil {
		return err
	}
	s.writes.Add(1)
	return nil
}

func (s *Store) keepPrevious() error {
	if err := ignoreMissing(s.d.Remove(linked)); err != nil {
		return err
	}
	if err := s.d.Link(current, linked); err != nil {
		return ignoreMissing(err)
	}
	return s.d.Rename(linked, previous)
}

// keepReserveLocked allocates a reserve for one more state, twice as large as this one.
func (s *Store) keepReserveLocked(state int64) error {
	const unit = 256 << 10
	want := (2*state + unit - 1) / unit * unit
	if s.spare >= 2*state {
		return nil
	}
	if err := s.allocate(want); err != nil {
		return err
	}
	s.spare = want
	return nil
}

func (s *Store) allocate(size int64) error {
	f, err := s.d.Open(reserve, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	if err = f.Allocate(size); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
