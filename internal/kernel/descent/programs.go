package descent

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// License is that of the programs. The kernel lets a program read its structures only with one that is compatible with the GPL: the two of
// this file, and that of package opener, may be used under the terms of the MIT license or of the GPL version 2, too.
const License = "Dual MIT/GPL"

// maxLease is the length of the longest id of a lease.
const maxLease = 40

// entry is what is recorded of a process. Its layout is that of the kernel's map: see format.
type entry struct {
	Start uint64         // in nanoseconds since boot
	Lease [maxLease]byte // padded with zeros
}

const entrySize = 8 + maxLease

// membersSpec is the record: the entry of each process, by pid. It is allocated at once, so that a fork never waits for memory.
func membersSpec(capacity uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "gpushare_member", Type: ebpf.Hash, KeySize: 4, ValueSize: entrySize, MaxEntries: capacity}
}

// lostSpec counts the processes for which the record was full.
func lostSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "gpushare_lost", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
}

// layout is where the kernel that runs has the fields that the programs read, in bytes.
type layout struct{ pid, tgid, start, signal, live int16 }

func kernelLayout() (l layout, err error) {
	const task = "task_struct"
	return l, Layout(
		Field{task, "pid", &l.pid}, Field{task, "tgid", &l.tgid}, Field{task, "start_boottime", &l.start}, Field{task, "signal", &l.signal},
		Field{"signal_struct", "live", &l.live},
	)
}

// Field is a field of a structure of the kernel that a program reads.
type Field struct {
	Struct, Name string
	At           *int16 // where Layout writes its offset in bytes
}

// Layout finds where the kernel that runs has the fields.
func Layout(fields ...Field) error {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	for _, f := range fields {
		var of *btf.Struct
		if err := types.TypeByName(f.Struct, &of); err != nil {
			return err
		}
		at, ok := offset(of.Members, f.Name)
		if !ok || at > 1<<15-1 {
			return fmt.Errorf("%s of the kernel has no field %s", f.Struct, f.Name)
		}
		*f.At = int16(at)
	}
	return nil
}

// offset finds a field, also in an unnamed structure: some kernels have most of task_struct in one that they shuffle.
func offset(members []btf.Member, name string) (uint32, bool) {
	for _, m := range members {
		if m.Name == name && m.BitfieldSize == 0 {
			return m.Offset.Bytes(), true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if at, ok := offset(inner, name); ok {
			return m.Offset.Bytes() + at, true
		}
	}
	return 0, false
}

// Places on the stack of a program.
const (
	keyAt   = -8
	userAt  = keyAt - 8
	entryAt = userAt - entrySize
)

// lookup sets R0 to the value of the key on the stack, and ends the program if there is none.
func lookup(m *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
	}
}

func end() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return()}
}

// forkProgram records a new process for the lease of the process that forked it, or counts it. The tracepoint has two arguments: the
// parent and the new task, which does not run yet.
func forkProgram(l layout, members, lost *ebpf.Map, users *bounds) asm.Instructions {
	code := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord),
		asm.LoadMem(asm.R7, asm.R6, l.pid, asm.Word),
		asm.LoadMem(asm.R8, asm.R6, l.tgid, asm.Word),
		asm.JNE.Reg(asm.R7, asm.R8, "end"), // It is a thread.
		asm.FnGetCurrentPidTgid.Call(),
		asm.RSh.Imm(asm.R0, 32),
		asm.StoreMem(asm.RFP, keyAt, asm.R0, asm.Word),
	}
	code = append(code, lookup(members)...)
	code = append(code, asm.LoadMem(asm.R1, asm.R6, l.start, asm.DWord), asm.StoreMem(asm.RFP, entryAt, asm.R1, asm.DWord))
	for i := int16(8); i < entrySize; i += 8 {
		code = append(code, asm.LoadMem(asm.R1, asm.R0, i, asm.DWord), asm.StoreMem(asm.RFP, entryAt+i, asm.R1, asm.DWord))
	}
	code = append(code, asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, entryAt+8))
	code = append(append(code, users.find("record")...), users.refuse("record")...)
	code = append(code,
		asm.StoreMem(asm.RFP, keyAt, asm.R8, asm.Word).WithSymbol("record"),
		asm.LoadMapPtr(asm.R1, members.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, entryAt),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "recorded"),
		asm.StoreImm(asm.RFP, keyAt, 0, asm.Word), // It is full.
	)
	code = append(code, lookup(lost)...)
	code = append(code, asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord), asm.Ja.Label("end"))
	recorded := count(1)
	recorded[0] = recorded[0].WithSymbol("recorded")
	return append(append(code, recorded...), end()...)
}

// exitProgram ends the record of a process whose last thread ends. The kernel counts a thread out before the tracepoint (do_exit), and
// frees the pid after it. The first thread may end long before the others, and an execve of another one ends it and takes its pid.
func exitProgram(l layout, members *ebpf.Map, users *bounds) asm.Instructions {
	code := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord),
		asm.LoadMem(asm.R1, asm.R6, l.signal, asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, l.live, asm.Word),
		asm.JNE.Imm(asm.R1, 0, "end"),
		asm.LoadMem(asm.R1, asm.R6, l.tgid, asm.Word),
		asm.StoreMem(asm.RFP, keyAt, asm.R1, asm.Word),
	}
	code = append(code, lookup(members)...) // Most processes are of no lease: to look takes no lock.
	code = append(code, asm.Mov.Reg(asm.R2, asm.R0), asm.Add.Imm(asm.R2, 8))
	code = append(code, users.find("delete")...)
	code = append(code,
		asm.LoadMapPtr(asm.R1, members.FD()).WithSymbol("delete"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.FnMapDeleteElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "end"), // Another one was first, and has counted it.
	)
	return append(append(code, count(-1)...), end()...)
}

// attached is a program at a tracepoint.
type attached struct {
	program *ebpf.Program
	link    link.Link
}

// attach loads a program and attaches it to a tracepoint.
func attach(name, tracepoint string, code asm.Instructions) (a attached, err error) {
	a.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: tracepoint, Instructions: code, License: License,
	})
	if err == nil {
		a.link, err = link.AttachTracing(link.TracingOptions{Program: a.program, AttachType: ebpf.AttachTraceRawTp})
	}
	if err != nil {
		a.Close()
		return attached{}, fmt.Errorf("cannot attach a program to the tracepoint %s: %w", tracepoint, kernelError(err))
	}
	return a, nil
}

// Close ends the use of the program. It stays attached where it is pinned.
func (a attached) Close() {
	if a.link != nil {
		_ = a.link.Close() // There is nothing to flush.
	}
	if a.program != nil {
		_ = a.program.Close()
	}
}

// missed is how often the kernel did not run the program, because it ran already on that processor.
func (a attached) missed() (uint64, error) {
	s, err := a.program.Stats()
	if err != nil {
		return 0, err
	}
	return s.RecursionMisses, nil
}

// kernelError returns the kernel's error without the verifier's log and the library's guesses.
func kernelError(err error) error {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return err
}
