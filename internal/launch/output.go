package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Output copies the kept output of a program, only the last lines if lines is not negative. With ended it then follows the
// output until ended is closed, and copies what was written by then.
func (k *Supervisors) Output(ctx context.Context, id string, lines int, ended <-chan struct{}, to io.Writer) error {
	f := &follower{path: outputPath(k.Dir, id), to: to}
	defer f.close()
	// The watch is created before the first reading, so that nothing written in between is missed.
	watch, err := newWatch(k.Dir)
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := f.begin(lines); err != nil {
		return err
	}
	for ended != nil {
		select {
		case <-ended:
			return f.rest()
		default:
		}
		if err := watch.wait(ctx, ended); err != nil {
			return err
		}
		if err := f.rest(); err != nil {
			return err
		}
	}
	return nil
}

// follower reads an output across rotations of its file.
type follower struct {
	path string
	to   io.Writer
	f    *os.File
}

func (f *follower) close() {
	if f.f != nil {
		f.f.Close()
	}
}

// begin copies the existing output from the last lines on.
func (f *follower) begin(lines int) error {
	skip := int64(0)
	if lines >= 0 {
		var err error
		if skip, err = f.before(lines); err != nil {
			return err
		}
	}
	old, err := os.Open(older(f.path))
	if err == nil {
		if size, serr := old.Seek(0, io.SeekEnd); serr == nil && size > skip {
			_, err = old.Seek(skip, io.SeekStart)
			if err == nil {
				_, err = io.Copy(f.to, old)
			}
			skip = 0
		} else {
			skip -= size
		}
		old.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the output: %w", err)
	}
	if f.f, err = os.Open(f.path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return ErrUnknown
		}
		return fmt.Errorf("cannot read the output: %w", err)
	}
	if _, err := f.f.Seek(skip, io.SeekStart); err != nil {
		return fmt.Errorf("cannot read the output: %w", err)
	}
	return f.rest()
}

// before counts the bytes before the last lines of both files.
func (f *follower) before(lines int) (int64, error) {
	ends := make([]int64, lines+1) // the ends of the last lines, as a ring
	var at, n int64
	for _, path := range []string{older(f.path), f.path} {
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("cannot read the output: %w", err)
		}
		for r := bufio.NewReader(file); ; {
			b, err := r.ReadSlice('\n')
			at += int64(len(b))
			if err == nil {
				ends[n%int64(len(ends))] = at
				n++
			} else if !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
		}
		file.Close()
	}
	if n <= int64(lines) {
		return 0, nil
	}
	return ends[n%int64(len(ends))], nil // the oldest entry: the end of the line before them
}

// rest copies what was written since.
func (f *follower) rest() error {
	for {
		if _, err := io.Copy(f.to, f.f); err != nil {
			return err
		}
		own, err1 := f.f.Stat()
		now, err2 := os.Stat(f.path)
		if err1 != nil || err2 != nil || os.SameFile(own, now) {
			return nil // During a rotation the file is missing: the next event follows.
		}
		if _, err := io.Copy(f.to, f.f); err != nil { // What was written before the rotation.
			return err
		}
		next, err := os.Open(f.path)
		if err != nil {
			return nil //nolint:nilerr // rotated again: the next event finds it
		}
		f.f.Close()
		f.f = next
	}
}

// watch waits for writes in a directory.
type watch struct{ *os.File }

func newWatch(dir string) (watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return watch{}, fmt.Errorf("cannot follow the output: %w", os.NewSyscallError("inotify_init1", err))
	}
	w := watch{os.NewFile(uintptr(fd), "inotify")}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_CREATE); err != nil {
		w.Close()
		return watch{}, fmt.Errorf("cannot follow the output: %w", os.NewSyscallError("inotify_add_watch", err))
	}
	return w, nil
}

// wait returns when something was written, or ended is closed.
func (w watch) wait(ctx context.Context, ended <-chan struct{}) error {
	done := make(chan struct{})
	woken := make(chan struct{})
	go func() { // ends with this wait
		defer close(woken)
		select {
		case <-ctx.Done():
		case <-ended:
		case <-done:
			return
		}
		_ = w.SetReadDeadline(time.Unix(1, 0)) // The file supports deadlines.
	}()
	_, err := w.Read(make([]byte, 4096))
	close(done)
	<-woken
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("cannot follow the output: %w", err)
	}
	return nil
}
