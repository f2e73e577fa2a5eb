package boundedread

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// chunk is how many entries are read at once.
const chunk = 512

// EachName calls each with the names in a directory, in portions and in the order of the file system, until it returns false.
// What is kept of them is up to the caller: a directory may have millions.
func EachName(dir string, each func(names []string) bool) error { return EachNameFrom(dir, 0, each) }

// EachNameFrom is EachName from a position on, which only the directories of the kernel give a meaning: proc_pid_fd(5) has
// descriptor n at position n+2.
func EachNameFrom(dir string, position int64, each func(names []string) bool) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	if position > 0 {
		if _, err := d.Seek(position, io.SeekStart); err != nil {
			return err
		}
	}
	for {
		names, err := d.Readdirnames(chunk)
		if len(names) > 0 && !each(names) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Entries lists a directory in the order of the names. cut: there are more than limit, and it lists some of them.
func Entries(dir string, limit int) (entries []os.DirEntry, cut bool, err error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer d.Close()
	for {
		some, err := d.ReadDir(min(chunk, limit+1))
		entries = append(entries, some...)
		if cut = len(entries) > limit; cut {
			entries = entries[:limit]
		}
		if cut || errors.Is(err, io.EOF) {
			slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
			return entries, cut, nil
		}
		if err != nil {
			return entries, false, err
		}
	}
}

// FirstNames lists at most limit names of an open directory, in the order of the file system.
func FirstNames(d *os.File, limit int) ([]string, error) {
	names, err := d.Readdirnames(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return names, nil
}
