package cgroup

import (
	"os"
	"path"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// OtherWay returns what of a path is in a hierarchy by another way than its mount, as through a symbolic link or another mount; empty:
// nothing, or it is not known. It reads no link on a file system whose server may never answer.
func (h Hierarchy) OtherWay(name string) string {
	if name == h.Mount || strings.HasPrefix(name, h.Mount+"/") {
		return ""
	}
	b, _, err := boundedread.TrustedPrefix("/proc/self/mountinfo", boundedread.Mounts)
	if err != nil {
		return ""
	}
	return otherWay(name, mountsOf(string(b)), os.Readlink)
}

// mounts are the file systems of a mountinfo file, by where they are mounted. Of two at one place the later one is seen.
type mounts map[string]string

func mountsOf(mountinfo string) mounts {
	out := mounts{}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if ok && len(f) >= 5 && len(kind) >= 1 {
			out[unescapeMount(f[4])] = kind[0]
		}
	}
	return out
}

// of is the file system of a path without symbolic links.
func (m mounts) of(name string) string {
	for at := name; ; at = path.Dir(at) {
		if kind, ok := m[at]; ok || at == "/" {
			return kind
		}
	}
}

// local are file systems without a server: a link there is read at once.
var local = map[string]bool{
	"btrfs": true, "devtmpfs": true, "erofs": true, "ext2": true, "ext3": true, "ext4": true, "f2fs": true, "overlay": true, "proc": true,
	"ramfs": true, "squashfs": true, "sysfs": true, "tmpfs": true, "xfs": true, "zfs": true,
}

// mostLinks is how many links the kernel follows in one path (path_resolution(7)).
const mostLinks = 40

// otherWay follows the links of a path up to where it is in a hierarchy.
func otherWay(name string, m mounts, readlink func(string) (string, error)) string {
	at, rest, links := "/", strings.Split(name, "/"), 0
	for {
		switch kind := m.of(at); {
		case kind == "cgroup2":
			return at
		case !local[kind] || len(rest) == 0:
			return ""
		}
		next := path.Join(at, rest[0])
		rest = rest[1:]
		kind := m.of(next)
		if _, mounted := m[next]; mounted || kind == "cgroup2" {
			at = next // A mount is no link.
			continue
		}
		to, err := readlink(next)
		if err != nil {
			at = next // No link, or nothing: what is below it may be a mount all the same.
			continue
		}
		if links++; links > mostLinks {
			return ""
		}
		if path.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
}
