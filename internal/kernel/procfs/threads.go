package procfs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Thread is one thread of a process.
type Thread struct {
	TID   int
	State byte // as in proc_pid_stat(5)
	// Tracer is the pid of the process that traces it (ptrace(2)), 0 without one. The kernel reports the thread that does.
	Tracer int
}

// Threads lists the threads of a process. One that exits meanwhile is left out. ErrNoProcess when there is no such process.
func Threads(pid int) ([]Thread, error) {
	tids, err := threadIDs(pid)
	if err != nil {
		return nil, err
	}
	threads := make([]Thread, 0, len(tids))
	for _, tid := range tids {
		b, err := readFile(pid, "task/"+strconv.Itoa(tid)+"/status")
		if err != nil {
			continue
		}
		t := Thread{TID: tid}
		t.State, t.Tracer = parseThread(string(b))
		if t.Tracer != 0 {
			t.Tracer = ProcessOf(t.Tracer)
		}
		threads = append(threads, t)
	}
	return threads, nil
}

// parseThread reads the state and the tracing thread in /proc/PID/task/TID/status.
func parseThread(status string) (state byte, tracer int) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "State:"); ok {
			if rest = strings.TrimSpace(rest); rest != "" {
				state = rest[0]
			}
		} else if rest, ok := strings.CutPrefix(line, "TracerPid:"); ok {
			tracer, _ = strconv.Atoi(strings.TrimSpace(rest)) // 0 is none
			break
		}
	}
	return state, max(tracer, 0)
}

func threadIDs(pid int) ([]int, error) {
	tids, err := numbers("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	return tids, nil
}

// Children lists the child processes of a process, ascending.
func Children(pid int) ([]int, error) {
	tids, err := threadIDs(pid)
	if err != nil {
		return nil, err
	}
	var children []int
	for _, tid := range tids {
		b, _, err := boundedread.OfProcess(pid, "task/"+strconv.Itoa(tid)+"/children", boundedread.IDs)
		if err != nil {
			continue // The thread has ended.
		}
		for word := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(word); err == nil {
				children = append(children, n)
			}
		}
	}
	slices.Sort(children)
	return children, nil
}

// ProcessOf returns the pid of a thread's process; 0 if there is no such thread.
func ProcessOf(tid int) int {
	b, err := readFile(tid, "status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Tgid:"); ok {
			pid, _ := strconv.Atoi(strings.TrimSpace(rest)) // 0 is none
			return pid
		}
	}
	return 0
}
