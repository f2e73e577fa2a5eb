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

// Store is the state on disk. Open makes one; Close lets go of the directory.
type Store struct {
	d    dir
	lock *os.File // nil in tests with a directory of their own

	state  atomic.Pointer[State]
	writes atomic.Uint64

	mu    locks.Mutex[locks.Store] // guards what follows, and that there is one writer
	file  []byte                   // what state.json holds; nil when it has to be written whatever the state is
	spare int64                    // how large the reserve is; 0 when there is none
}

// Report is what Open met.
type Report struct {
	Fresh       bool     // there was no state: a new node
	FellBack    bool     // the state is the one before the last
	Lost        bool     // there was a state and nothing of it could be read
	Quarantined []string // damaged files, by their new names
	Reason      string   // what was wrong, one sentence; empty when nothing was
}

// Open takes the directory (made when it is missing) and reads the state. ErrLocked: another daemon has it.
// ErrNewerFormat: a newer version wrote it, and nothing was touched. Damage is no error: it is told in the report.
func Open(path string) (*Store, Report, error) {
	d, err := openDir(path)
	if err != nil {
		return nil, Report{}, fmt.Errorf("cannot open %s: %w", path, err)
	}
	l, err := lock(d)
	if err != nil {
		return nil, Report{}, fmt.Errorf("cannot lock %s: %w", path, errors.Join(err, d.root.Close()))
	}
	s, report, err := open(d)
	if err != nil {
		return nil, report, fmt.Errorf("cannot read the state in %s: %w", path, errors.Join(err, l.Close(), d.root.Close()))
	}
	s.lock = l
	return s, report, nil
}

// Peek reads the state without taking the directory and without writing anything: for who must know what a daemon that
// does not run has left behind. os.ErrNotExist: there was never one. Damage is an error here.
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

// Close lets another daemon have the directory. The store must not be used afterwards.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
		s.lock = nil
	}
	if d, ok := s.d.(osDir); ok {
		errs = append(errs, d.root.Close())
	}
	return errors.Join(errs...)
}

// open reads the newest state that is whole.
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
			r.Reason = fmt.Sprintf("%s could not be used (%v): went back to the state before it", current, lastErr)
		case errors.Is(err, os.ErrNotExist) && errors.Is(lastErr, os.ErrNotExist):
			r.Fresh = true
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, errCorrupt):
			r.Lost = true
			r.Reason = fmt.Sprintf("the state could not be read (%v; the one before it: %v): what the hardware shows is taken as it is", lastErr, err)
		default:
			return nil, r, err
		}
		// Only now: a newer version's file must be found untouched, and so must everything when reading fails.
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
		s.file = b
	}
	s.findReserve()
	return s, r, nil
}

// findReserve makes sure of the reserve that is there: allocating what is allocated already takes no room.
func (s *Store) findReserve() {
	f, err := s.d.Open(reserve, os.O_RDONLY)
	if err != nil {
		return // the next Update makes one
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

// quarantine puts a damaged file aside for people to look at. It keeps a few; the last place is reused.
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

// State is the state as it is on disk. It is shared: nobody may write into it.
func (s *Store) State() *State { return s.state.Load() }

// Writes counts the times that the file was written. Converging a second time must not move it.
func (s *Store) Writes() uint64 { return s.writes.Load() }

// Update changes the state: f gets a copy of its own, and when f returns nil the copy is on disk before Update returns.
// A change that leaves everything as it was writes nothing. On an error the state is as before.
//
// On a full disk Update refuses, and leaves the reserve for Finish.
func (s *Store) Update(f func(*State) error) error { return s.update(f, false) }

// Finish is Update for the write that closes a change. On a full disk it spends the reserve, so that what was begun can
// be ended.
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
	if !closing {
		// Whoever begins something must be able to end it.
		if err := s.keepReserveLocked(int64(len(b))); err != nil {
			return fmt.Errorf("cannot save the state: %w", err)
		}
	}
	err = s.replace(b, fresh, os.O_CREATE|os.O_TRUNC)
	if isFull(err) && closing && s.spare >= int64(len(b)) {
		s.spare = 0
		err = s.replace(b, reserve, 0)
	}
	if err != nil {
		// The rename may have happened or not: the next Update writes again even if nothing changed.
		s.file = nil
		return fmt.Errorf("cannot save the state: %w", err)
	}
	s.file = b
	s.state.Store(next)
	if closing {
		// The disk may have room again. If it has none, the next Update says so.
		_ = s.keepReserveLocked(int64(len(b)))
	}
	return nil
}

// copyLocked gives a copy that shares nothing with the state that others read.
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

// replace puts a file with these bytes in the place of the current one, which becomes the previous. At every moment
// both names lead to a whole file or to none.
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

// keepReserveLocked sees to it that there are blocks for one more state, twice as large as this one.
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
