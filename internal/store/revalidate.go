package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// locked is a directory that this process has locked, and what its names were when it did.
type locked struct {
	path string
	mode fs.FileMode // of the directory, if it must be created again
	lock *os.File
	dir  fs.FileInfo
	file fs.FileInfo // of the lock
}

// ErrReplaced: another directory with a state of its own is in the place of the one that is locked.
var ErrReplaced = errors.New("another directory, which has a state of its own, is in its place")

// ErrRemoved: the directory was removed or replaced, and cannot be created and locked again.
var ErrRemoved = errors.New("its directory was removed or replaced")

// take locks a directory. Its file of the lock is that of the name when this returns.
func take(d osDir, path string, mode fs.FileMode) (locked, error) {
	l := locked{path: path, mode: mode}
	var err error
	if l.dir, err = d.root.Stat("."); err != nil {
		return l, err
	}
	if l.lock, err = lock(d); err != nil {
		return l, err
	}
	if l.file, err = l.lock.Stat(); err != nil {
		return l, errors.Join(err, l.lock.Close())
	}
	return l, nil
}

// missing says which of its names is no longer what is locked; empty: both are. It costs two calls of the kernel.
func (l *locked) missing() string {
	if now, err := os.Stat(l.path); err != nil || !os.SameFile(now, l.dir) { // The name may be a link to the directory.
		return l.path
	}
	name := filepath.Join(l.path, "lock")
	if now, err := os.Lstat(name); err != nil || !os.SameFile(now, l.file) {
		return name
	}
	return ""
}

// Revalidate compares what the store has open with its names. What another program removed is created again, with the state that
// this process knows. lost are the names that were removed; with an error they are not there again.
func (s *Store) Revalidate() (lost []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost, err = s.revalidateLocked()
	lost, s.removed = append(s.removed, lost...), nil
	return lost, err
}

func (s *Store) revalidateLocked() (lost []string, err error) {
	if _, ok := s.d.(osDir); !ok {
		return nil, nil // a directory of a test
	}
	var errs []error
	for i := range s.locks {
		l := &s.locks[i]
		name := l.missing()
		if name == "" {
			continue
		}
		lost = append(lost, name)
		if err := s.retake(l); err != nil {
			errs = append(errs, fmt.Errorf("cannot lock %s again: %w", l.path, err))
		}
	}
	if s.path == "" || errors.Join(errs...) != nil {
		return lost, errors.Join(errs...)
	}
	if _, err := os.Lstat(filepath.Join(s.path, current)); errors.Is(err, fs.ErrNotExist) && s.written {
		lost = append(lost, filepath.Join(s.path, current))
		errs = append(errs, s.writeAgain())
	}
	return lost, errors.Join(errs...)
}

// retake locks a directory again that was removed, or whose lock was.
func (s *Store) retake(l *locked) error {
	d, err := openDir(l.path, l.mode)
	if err != nil {
		return err
	}
	own := l.path == s.path
	if own {
		err = s.refuseOther(d, l.dir)
	}
	var next locked
	if err == nil {
		next, err = take(d, l.path, l.mode)
	}
	if err != nil {
		return errors.Join(err, d.root.Close())
	}
	old := *l
	*l = next
	errs := []error{old.lock.Close()}
	if own {
		errs = append(errs, s.d.(osDir).root.Close())
		s.d, s.spare = d, 0
	} else {
		errs = append(errs, d.root.Close())
	}
	return errors.Join(errs...)
}

// refuseOther refuses a directory with another state than the locked one: an administrator may have put it there, to be used after a
// restart.
func (s *Store) refuseOther(d osDir, was fs.FileInfo) error {
	now, err := d.root.Stat(".")
	if err != nil || os.SameFile(now, was) { // Only its lock was removed.
		return err
	}
	b, err := readFile(d, current)
	if errors.Is(err, fs.ErrNotExist) || err == nil && s.file != nil && bytes.Equal(b, s.file) {
		return nil
	}
	if err != nil {
		return err
	}
	// After a write that failed it is not known which file there is.
	if known, err := marshal(s.state.Load()); err != nil || bytes.Equal(b, known) {
		return err
	}
	return ErrReplaced
}

// checkDirectory finds out whether the name of the state's directory is still that of the locked one: another would not be written to,
// and what is acknowledged would be nowhere after a restart. It costs two calls of the kernel.
func (s *Store) checkDirectory() error {
	for i := range s.locks {
		if l := &s.locks[i]; l.path != s.path || l.missing() == "" {
			continue
		}
		lost, err := s.revalidateLocked()
		if s.removed = append(s.removed, lost...); err != nil {
			return fmt.Errorf("%w: %w", ErrRemoved, err)
		}
	}
	return nil
}

// writeAgain writes the state that is in force.
func (s *Store) writeAgain() error {
	b, err := marshal(s.state.Load())
	if err != nil {
		return err
	}
	s.file = nil
	if err := s.replace(b, fresh, os.O_CREATE|os.O_TRUNC); err != nil {
		return fmt.Errorf("cannot write the state again: %w", err)
	}
	s.file, s.spare = b, 0
	return nil
}
