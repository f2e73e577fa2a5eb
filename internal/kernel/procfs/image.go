package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// Image distinguishes the program that a process executes from the one before it: where the kernel has put its code, its stack, its
// heap and its arguments. They are random, but where that is off, and a process may set them.
type Image struct{ Code, Stack, Heap, Arguments uint64 }

// ReadImage returns the image of a process. It is an error if the caller may not know it.
func ReadImage(pid int) (Image, error) {
	b, err := readFile(pid, "stat")
	if err != nil {
		return Image{}, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	var m Image
	for field, to := range map[int]*uint64{26: &m.Code, 28: &m.Stack, 47: &m.Heap, 48: &m.Arguments} { // As proc_pid_stat(5) counts.
		if len(f) < field-2 {
			return Image{}, fmt.Errorf("cannot read the image of pid %d: the stat line is too short", pid)
		}
		if *to, err = strconv.ParseUint(string(f[field-3]), 10, 64); err != nil {
			return Image{}, fmt.Errorf("cannot read the image of pid %d: %w", pid, err)
		}
	}
	if m.Stack == 0 { // What a reader without the right to it gets, and of a process that ends.
		return Image{}, fmt.Errorf("cannot read the image of pid %d: %w", pid, errHidden)
	}
	return m, nil
}

var errHidden = errors.New("the kernel does not report it")
