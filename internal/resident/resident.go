// Package resident keeps the resident memory of a program that mostly waits close to what it uses. It knows nothing of what the program
// does.
package resident

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// mostMappings bounds the list of mappings in bytes: a Go program has a few dozen of half a KiB each.
const mostMappings = 1 << 20

// Release collects garbage and returns free memory to the kernel, and unmaps the pages of the program file. Those that are used again
// are mapped again from the page cache: the code of a start is as large as all that runs later, and the kernel maps 16 pages around each
// that is used. A file that was replaced meanwhile, as by an upgrade, is still the one that is mapped.
func Release() error {
	debug.FreeOSMemory()
	self := os.Getpid()
	list, cut, err := boundedread.OfProcess(self, "smaps", mostMappings)
	if err == nil && cut {
		err = errors.New("it is too long")
	}
	if err != nil {
		return fmt.Errorf("cannot read the mappings of this program: %w", err)
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("cannot find the file of this program: %w", err)
	}
	for _, m := range unchanged(list, program) {
		if err := unmap(m); err != nil {
			return fmt.Errorf("cannot unmap pages of this program: %w", err)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// unchanged finds the mappings of the program in the text of /proc/PID/smaps that can only be read or executed and have only pages of
// the file: a page that the loader has changed, as for relocations, is in no file, and may be swapped out. The line of a mapping begins
// with its addresses, and those of its properties with a capital letter.
func unchanged(smaps []byte, program string) (found []mapping) {
	var m mapping
	ofProgram := false
	for line := range bytes.Lines(smaps) {
		for _, of := range []string{"Anonymous:", "Swap:"} {
			if size, ok := bytes.CutPrefix(line, []byte(of)); ok && string(bytes.TrimSpace(size)) != "0 kB" {
				ofProgram = false
			}
		}
		if bytes.HasPrefix(line, []byte("Swap:")) && ofProgram { // It comes after Anonymous.
			found = append(found, m)
		}
		if 'A' <= line[0] && line[0] <= 'Z' {
			continue
		}
		var access, name string
		m = mapping{}
		n, _ := fmt.Sscanf(string(line), "%x-%x %s", &m.from, &m.to, &access)
		// After the access come the offset, the device, the inode and the name, which may have spaces.
		if f := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 6); len(f) == 6 {
			name = string(bytes.TrimLeft(f[5], " "))
		}
		ofProgram = n == 3 && (access == "r-xp" || access == "r--p") && name == program
	}
	return found
}

func unmap(m mapping) error {
	if _, _, err := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); err != 0 {
		return os.NewSyscallError("madvise", err)
	}
	return nil
}
