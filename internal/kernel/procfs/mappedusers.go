package procfs

import (
	"strconv"
	"strings"
)

// MappedUsers returns the ids outside of its user namespace that a process may be in it, as the first and the last of each range. Only
// a user's own id and those that /etc/subuid gives them can be mapped (newuidmap(1)). Nothing for a namespace of root, as
// the host's is: it maps all users.
func MappedUsers(pid int) [][2]uint32 {
	b, err := readSome("/proc/"+strconv.Itoa(pid)+"/uid_map", 64<<10)
	if err != nil {
		return nil
	}
	var out [][2]uint32
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 != nil || err2 != nil || count == 0 {
			continue
		}
		if first == 0 {
			return nil
		}
		out = append(out, [2]uint32{uint32(first), uint32(min(first+count-1, 1<<32-1))})
	}
	return out
}
