package procfs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// statTimeout is how long one statx may take. Without a file system that must answer, it takes a microsecond.
const statTimeout = 100 * time.Millisecond

// maxStuck is the number of goroutines that may wait for file systems that do not answer. Each of them keeps a thread.
const maxStuck = 16

// fileStats reads what open files are, for the whole process.
var fileStats = statReader{stat: statx, timeout: statTimeout}

// statReader calls statx in goroutines that it can give up: with AT_STATX_DONT_SYNC most file systems answer from memory, but
// some ask their server first whether the file is still the same (d_weak_revalidate of NFS and 9p). It does not call
// statx again for a mount on which a call has not returned yet.
type statReader struct {
	stat    func(link string) (OpenFile, error)
	timeout time.Duration

	mu    sync.Mutex  // guards stuck
	stuck map[int]int // calls that have not returned, by id of the mount
}

// statBatch is the calls of one goroutine, one after the other.
type statBatch struct {
	mu      sync.Mutex // guards what follows
	next    int        // the file that is read now
	results []OpenFile
	lost    bool // no call waits for it any more
	mount   int  // on which it was lost
}

// read calls found for each file that still exists. unread is the number of files whose file system does not answer.
func (r *statReader) read(files []namedFile, found func(OpenFile)) (unread int, err error) {
	for len(files) > 0 {
		skipped, err := r.skipStuck(&files)
		if unread += skipped; err != nil {
			return unread, err
		}
		results, n := r.batch(files)
		for _, o := range results {
			found(o)
		}
		if n < len(files) {
			unread++
			n++
		}
		files = files[n:]
	}
	return unread, nil
}

// skipStuck removes the files on mounts that do not answer.
func (r *statReader) skipStuck(files *[]namedFile) (skipped int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.stuck) == 0 {
		return 0, nil
	}
	if len(r.stuck) >= maxStuck {
		return len(*files), fmt.Errorf("cannot read open files: %d file systems do not answer", maxStuck)
	}
	was := len(*files)
	*files = slices.DeleteFunc(*files, func(f namedFile) bool { return r.stuck[f.mount()] > 0 })
	return was - len(*files), nil
}

// batch reads files until one of them takes too long. n is the number that were read.
func (r *statReader) batch(files []namedFile) (results []OpenFile, n int) {
	b := &statBatch{}
	done := make(chan struct{})
	go func() { // ends when the file systems answer: at most maxStuck do not
		r.run(b, files)
		close(done)
	}()
	timer := time.NewTimer(r.timeout)
	defer timer.Stop()
	for last := -1; ; {
		select {
		case <-done:
			return b.results, len(files)
		case <-timer.C:
		}
		b.mu.Lock()
		if b.next == last && b.next < len(files) {
			b.lost, b.mount = true, files[b.next].mount()
			r.addStuck(b.mount, 1)
			results, n = b.results, b.next
			b.mu.Unlock()
			return results, n
		}
		last = b.next
		b.mu.Unlock()
		timer.Reset(r.timeout)
	}
}

// run reads the files of a batch. When it was lost meanwhile, it ends with the call that it was lost in.
func (r *statReader) run(b *statBatch, files []namedFile) {
	for i := range files {
		o, err := r.stat(files[i].link())
		b.mu.Lock()
		if b.lost {
			b.mu.Unlock()
			r.addStuck(b.mount, -1)
			return
		}
		if err == nil { // otherwise it was closed by now
			o.PID, o.Name, o.FD = files[i].pid, files[i].name, files[i].fd
			b.results = append(b.results, o)
		}
		b.next = i + 1
		b.mu.Unlock()
	}
}

func (r *statReader) addStuck(mount, calls int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck == nil {
		r.stuck = map[int]int{}
	}
	if r.stuck[mount] += calls; r.stuck[mount] == 0 {
		delete(r.stuck, mount)
	}
}

// mount is the id of the mount that the file was opened on, which is unique on the host as long as the mount exists; 0 when it
// was closed by now.
func (f *namedFile) mount() int {
	id, err := strconv.Atoi(descriptorInfo(f.pid, f.fd, "mnt_id"))
	if err != nil {
		return 0
	}
	return id
}

// statx reads a file from what the kernel knows.
func statx(link string) (OpenFile, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return OpenFile{}, err
		}
		break
	}
	o := OpenFile{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		o.Type = 'c'
	case unix.S_IFBLK:
		o.Type = 'b'
	default:
		return o, nil
	}
	o.Rdev = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
	return o, nil
}
