package procfs

import (
	"iter"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// The bounds of UsedFiles. A user may have as many descriptors and mappings as they like.
const (
	mostUsedFiles  = 1024
	mostMappings   = 1 << 20 // bytes
	mostDescriptor = 4096    // bytes of a descriptor's fdinfo
)

// UsedFiles is where a process has files, as the kernel knows it.
type UsedFiles struct {
	Mounts  map[int]bool       // ids of mounts: of its open files
	Devices map[[2]uint32]bool // major and minor numbers of file systems: of what it has mapped
	Paths   []string           // its working directory, its root directory, its program
}

// ReadUsedFiles reads them by one of its threads: one that has exited has none. It asks no file system, and leaves out what would wait
// for a lock of the process.
func ReadUsedFiles(tid int) UsedFiles {
	dir := "/proc/" + strconv.Itoa(tid) + "/"
	u := UsedFiles{Mounts: map[int]bool{}, Devices: map[[2]uint32]bool{}}
	for _, name := range []string{"cwd", "root", "exe"} {
		if path, err := os.Readlink(dir + name); err == nil && path != "/" {
			u.Paths = append(u.Paths, path)
		}
	}
	if d, err := os.Open(dir + "fdinfo"); err == nil {
		names, _ := boundedread.FirstNames(d, mostUsedFiles) // None of a thread that has exited.
		d.Close()
		for _, name := range names {
			if b, err := readSome(dir+"fdinfo/"+name, mostDescriptor); err == nil {
				if id := mountOf(string(b)); id != 0 {
					u.Mounts[id] = true
				}
			}
		}
	}
	for f := range mappedFiles(tid) {
		u.Devices[[2]uint32{f.major, f.minor}] = true
	}
	return u
}

// Mapped reports whether a process has a file mapped. Of one that keeps the lock of its memory, or has more mappings than are read, it is
// not known: false.
func Mapped(file *OpenFile) bool {
	for f := range mappedFiles(file.PID) {
		if f.ino == file.Ino && unix.Mkdev(f.major, f.minor) == file.Dev {
			return true
		}
	}
	return false
}

// mappedFile is a file of a mapping, by its file system and its number there.
type mappedFile struct {
	major, minor uint32
	ino          uint64
}

// mappedFiles lists them, as far as they are read in time.
func mappedFiles(tid int) iter.Seq[mappedFile] {
	return func(yield func(mappedFile) bool) {
		var maps []byte
		if !Within(tid, func() { maps, _ = readSome("/proc/"+strconv.Itoa(tid)+"/maps", mostMappings) }) { // What was read of them is used.
			return
		}
		for line := range strings.Lines(string(maps)) {
			f := strings.Fields(line)
			if len(f) < 6 {
				continue
			}
			major, minor, _ := strings.Cut(f[3], ":")
			ma, err1 := strconv.ParseUint(major, 16, 32)
			mi, err2 := strconv.ParseUint(minor, 16, 32)
			ino, err3 := strconv.ParseUint(f[4], 10, 64)
			if err1 == nil && err2 == nil && err3 == nil && !yield(mappedFile{uint32(ma), uint32(mi), ino}) {
				return
			}
		}
	}
}

// mountOf returns the id of the mount from a descriptor's fdinfo; 0 without one.
func mountOf(fdinfo string) int {
	for line := range strings.Lines(fdinfo) {
		if rest, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			id, _ := strconv.Atoi(strings.TrimSpace(rest)) // 0 is none.
			return id
		}
	}
	return 0
}
