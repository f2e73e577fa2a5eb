package kernellog

import (
	"strconv"
	"strings"
	"time"
)

// Record is one XID in the kernel's log.
type Record struct {
	// Time is when the record was read.
	Time time.Time
	PCI  string // domain:bus:device, lowercase, "0000:07:00": gpu.Identity.PCI without the function
	XID  uint64
	// PID is the process that caused the error, as the initial PID namespace numbers it. 0 when the driver does not name one.
	PID  int
	Name string  // of the process, as the driver prints it: at most 15 bytes. Empty when it names none
	GI   *uint32 // the GPU instance; nil when the driver names none
	CI   *uint32 // its compute instance; nil when the driver names none
	// Lost: records between the previous Record and this one were overwritten before they were read. An XID may be missing.
	Lost bool
}

// Parse reads one record of /dev/kmsg, "4,1234,5678901,-;NVRM: Xid (PCI:0000:07:00): 31, pid=…". ok is false for every other
// record, and for one that did not come from the kernel: a process that may write to /dev/kmsg cannot report an XID, because
// the kernel gives its records another facility than its own (Documentation/ABI/testing/dev-kmsg).
//
// The forms of the line are those of NVIDIA's open kernel modules (src/nvidia/src/kernel/gpu/rc and nv_gpu_ops), and of reports of
// older drivers: without "PCI:", and without the process.
func Parse(record string) (r Record, ok bool) {
	prefix, text, ok := strings.Cut(record, ";")
	if !ok || !fromKernel(prefix) {
		return Record{}, false
	}
	text, _, _ = strings.Cut(text, "\n") // lines after the first are the record's dictionary
	rest, ok := strings.CutPrefix(text, "NVRM: Xid (")
	if !ok {
		return Record{}, false
	}
	where, rest, ok := strings.Cut(rest, "): ")
	if !ok || !r.at(where) {
		return Record{}, false
	}
	number, rest, _ := strings.Cut(rest, ", ")
	xid, err := strconv.ParseUint(strings.TrimSuffix(number, ","), 10, 32)
	if err != nil {
		return Record{}, false
	}
	r.XID = xid
	r.process(rest)
	return r, true
}

// fromKernel reports whether the priority in the prefix has the kernel's facility, 0. The levels are 0 to 7.
func fromKernel(prefix string) bool {
	priority, _, _ := strings.Cut(prefix, ",")
	n, err := strconv.ParseUint(priority, 10, 32)
	return err == nil && n < 8
}

// at reads "PCI:0000:07:00 GPU-I:05 GPU-CI:00".
func (r *Record) at(where string) bool {
	words := strings.Fields(where)
	if len(words) == 0 {
		return false
	}
	pci, ok := address(strings.TrimPrefix(words[0], "PCI:"))
	if !ok {
		return false
	}
	r.PCI = pci
	for _, w := range words[1:] {
		if id, ok := strings.CutPrefix(w, "GPU-I:"); ok {
			r.GI = instanceID(id)
		}
		if id, ok := strings.CutPrefix(w, "GPU-CI:"); ok {
			r.CI = instanceID(id)
		}
	}
	return true
}

func instanceID(text string) *uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil
	}
	id := uint32(n)
	return &id
}

// address returns a PCI address without function in the form of gpu.Identity: a domain of four digits, or eight where it needs
// them, all lowercase.
func address(text string) (string, bool) {
	parts := strings.Split(strings.ToLower(text), ":")
	if len(parts) != 3 {
		return "", false
	}
	for i, most := range []int{8, 2, 2} {
		if len(parts[i]) == 0 || len(parts[i]) > most || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return "", false
		}
	}
	domain := strings.TrimLeft(parts[0], "0")
	return strings.Repeat("0", max(0, 4-len(domain))) + domain + ":" + parts[1] + ":" + parts[2], true
}

// process reads "pid=1234, name=python, …". The driver prints pid='<unknown>' where it knows none.
func (r *Record) process(text string) {
	value, ok := strings.CutPrefix(text, "pid=")
	if !ok {
		return
	}
	value, rest, _ := strings.Cut(value, ",")
	pid, err := strconv.ParseUint(strings.Trim(value, `'"`), 10, 31)
	if err != nil || pid == 0 {
		return
	}
	r.PID = int(pid)
	if name, ok := strings.CutPrefix(rest, " name="); ok {
		r.Name, _, _ = strings.Cut(name, ", ")
	}
}
