package procfs

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// A call that does not return costs one timeout; the files next to it are read, and its mount is not read again until the call
// has returned.
func TestStatThatDoesNotReturn(t *testing.T) {
	dir := t.TempDir()
	var files []namedFile
	for _, name := range []string{"a", "stuck", "b"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		fds := ownFiles(t)
		i := slices.IndexFunc(fds, func(n namedFile) bool { return n.name == f.Name() })
		files = append(files, fds[i])
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fds := ownFiles(t)
	other := fds[slices.IndexFunc(fds, func(n namedFile) bool { return n.name == "/dev/null" })]
	if other.mount() == files[0].mount() || files[0].mount() == 0 {
		t.Skipf("needs /dev and %s on two mounts", dir)
	}
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var calls atomic.Int64
		r := statReader{timeout: statTimeout, stat: func(link string) (OpenFile, error) {
			calls.Add(1)
			if link == files[1].link() {
				<-answer
			}
			return OpenFile{Ino: 1}, nil
		}}
		read := func(files ...namedFile) (names []string, unread int) {
			unread, err := r.read(slices.Clone(files), func(o OpenFile) { names = append(names, filepath.Base(o.Name)) })
			if err != nil {
				t.Fatal(err)
			}
			return names, unread
		}
		// The two files after the one that is stuck: one on its mount, one on another.
		if names, unread := read(append(files, other)...); !slices.Equal(names, []string{"a", "null"}) || unread != 2 {
			t.Errorf("read %v, %d unread", names, unread)
		}
		was := calls.Load()
		if names, unread := read(files...); len(names) != 0 || unread != 3 || calls.Load() != was {
			t.Errorf("again: %v, %d unread, %d more calls", names, unread, calls.Load()-was)
		}
		for mount := range maxStuck {
			r.addStuck(-1-mount, 1)
		}
		if _, err := r.read(slices.Clone(files), func(OpenFile) {}); err == nil {
			t.Error("no error with as many goroutines as may be lost")
		}
		for mount := range maxStuck {
			r.addStuck(-1-mount, -1)
		}
		close(answer)
		synctest.Wait()
		if names, unread := read(append(files, other)...); len(names) != 4 || unread != 0 {
			t.Errorf("after the answer: %v, %d unread", names, unread)
		}
	})
}

// ownFiles are the open files of the test itself.
func ownFiles(t *testing.T) (files []namedFile) {
	t.Helper()
	if _, err := eachDescriptor(os.Getpid(), 0, firstDescriptors, func(fds []string) bool {
		named, _ := namedFiles(os.Getpid(), fds)
		files = append(files, named...)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return files
}
