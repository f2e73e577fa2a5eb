package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Call is a call of the kernel in a filter. With Mask it is meant only if the lower half of one of its arguments has Value under Mask,
// or with Other any other value.
type Call struct {
	Number uintptr
	Arg    uint32
	Mask   uint32
	Value  uint32
	Other  bool
}

// Filter decides which calls of the kernel a process may make. A call that it refuses fails with EPERM.
type Filter struct {
	// Only has the calls that are allowed; every other one is refused. Nil: all but Never.
	Only []Call
	// Never has the calls that are refused, also those in Only.
	Never []Call
	// Absent has the calls that fail as in a kernel without them, so that their caller uses another one.
	Absent []Call
}

// The places of the fields of struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// x32 marks numbers of the third set of calls of x86-64, which no program here uses.
const x32 = 0x40000000

// architectures are those whose filters are known.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

const (
	refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	allow  = uint32(unix.SECCOMP_RET_ALLOW)
)

// program returns the instructions of a filter.
func (f *Filter) program() ([]bpf.RawInstruction, error) {
	arch, ok := architectures[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("cannot filter calls of the kernel: their numbers on %s are not known", runtime.GOARCH)
	}
	load := func(at uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: at, Size: 4} }
	code := []bpf.Instruction{
		load(offsetArch),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		load(offsetNumber),
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32, SkipTrue: 1},
		bpf.RetConstant{Val: refuse},
	}
	add := func(calls []Call, result uint32) {
		for _, c := range calls {
			if c.Mask == 0 {
				code = append(code, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.Number), SkipFalse: 1}, bpf.RetConstant{Val: result})
				continue
			}
			meant := bpf.JumpEqual
			if c.Other {
				meant = bpf.JumpNotEqual
			}
			code = append(code,
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.Number), SkipFalse: 5},
				load(offsetArgs+8*c.Arg), // Both architectures have the lower half first.
				bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.Mask},
				bpf.JumpIf{Cond: meant, Val: c.Value, SkipFalse: 1},
				bpf.RetConstant{Val: result},
				load(offsetNumber),
			)
		}
	}
	add(f.Never, refuse)
	add(f.Absent, absent)
	if f.Only == nil {
		return bpf.Assemble(append(code, bpf.RetConstant{Val: allow}))
	}
	add(f.Only, allow)
	return bpf.Assemble(append(code, bpf.RetConstant{Val: refuse}))
}

// Apply applies the filter to all threads of this process, and sets no_new_privs, without which only root may have one.
func (f *Filter) Apply() error {
	code, err := f.program()
	if err != nil {
		return err
	}
	raw := make([]unix.SockFilter, len(code))
	for i, in := range code {
		raw[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	prog := unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", err)
	}
	// The kernel gives both to all other threads of the process.
	thread, _, errno := unix.Syscall(
		unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)),
	)
	if errno != 0 {
		return fmt.Errorf("cannot filter calls of the kernel: %w", os.NewSyscallError("seccomp", errno))
	}
	if thread != 0 {
		return fmt.Errorf("cannot filter calls of the kernel: thread %d has another filter", thread)
	}
	return nil
}
