package procfs

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strconv"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// firstDescriptors is how many descriptors of each process are read before the others of the processes that have more. Few programs
// have as many.
const firstDescriptors = 4096

// walkDescriptors calls each with the descriptors of the processes, in portions, until ctx ends. First it reads the first
// descriptors of every process. The others of processes that have more follow in a random order, and from a random
// descriptor on: no process keeps others from being read, or hides a descriptor behind others in every walk. unread is the
// number of processes that it could not read, or not to the end, and what each has not read. It skips processes that have exited.
func walkDescriptors(ctx context.Context, pids []int, each func(pid int, fds []string) (unread int, err error)) (unread int, err error) {
	var failed error
	read := func(pid, from, most int) (left bool) {
		left, err := eachDescriptor(pid, from, most, func(fds []string) bool {
			if failed = ctx.Err(); failed != nil {
				return false
			}
			n, err := each(pid, fds)
			unread += n
			failed = err
			return err == nil
		})
		if err != nil && !closed(err) {
			unread++
		}
		return left
	}
	var large []int
	for _, pid := range pids {
		if read(pid, 0, firstDescriptors) {
			large = append(large, pid)
		}
		if failed == nil {
			failed = ctx.Err()
		}
		if failed != nil {
			return unread, failed
		}
	}
	rand.Shuffle(len(large), func(i, j int) { large[i], large[j] = large[j], large[i] })
	for i, pid := range large {
		size := max(tableSize(pid), firstDescriptors+1)
		start := firstDescriptors + rand.IntN(size-firstDescriptors)
		read(pid, start, boundedread.Names)
		if failed == nil {
			read(pid, firstDescriptors, start-firstDescriptors)
		}
		if failed != nil {
			return unread + len(large) - i, failed
		}
	}
	return unread, nil
}

// eachDescriptor calls each with the descriptors of a process in [from, from+most), in portions. left: it has others above.
func eachDescriptor(pid, from, most int, each func(fds []string) bool) (left bool, err error) {
	err = boundedread.EachNameFrom("/proc/"+strconv.Itoa(pid)+"/fd", int64(from)+2, func(fds []string) bool {
		// They are in ascending order.
		for i, fd := range fds {
			if n, err := strconv.Atoi(fd); err == nil && n >= from+most {
				left, fds = true, fds[:i]
				break
			}
		}
		return (len(fds) == 0 || each(fds)) && !left
	})
	return left, err
}

// tableSize is the size of the table of descriptors of a process, 0 if it has exited.
func tableSize(pid int) int {
	b, _, _ := boundedread.OfProcess(pid, "status", boundedread.Process)
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("FDSize:")); ok {
			n, _ := strconv.Atoi(string(bytes.TrimSpace(rest))) // 0 is as good as none
			return n
		}
	}
	return 0
}

func descriptorLink(pid int, fd string) string { return "/proc/" + strconv.Itoa(pid) + "/fd/" + fd }
