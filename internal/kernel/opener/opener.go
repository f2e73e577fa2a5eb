package opener

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/descent"
)

// File is what a descriptor refers to: a device by its number, another file by its file system and its number there.
type File struct {
	Device uint64 // see Number; of a file that is no device that of its file system
	Ino    uint64 // 0 for a device
}

// Opened is a file that a process has open. One that it only names (O_PATH) is none.
type Opened struct {
	PID  int
	UID  uint32 // of the user who opened it: the real one
	File File
}

// Number is a device number as the kernel has it in its structures (MKDEV in include/linux/kdev_t.h).
func Number(major, minor uint32) uint64 { return uint64(major)<<20 | uint64(minor) }

// Reader asks the kernel. Its zero value is ready: the program is loaded when it is first needed.
type Reader struct {
	once sync.Once
	slot chan struct{} // full while one is under way: only that uses what follows

	files *ebpf.Map
	iter  *link.Iter
	prog  *ebpf.Program
	err   error // why there is none, when it was last tried
	tried time.Time
}

// retryInterval is how often a program that could not be loaded is loaded again: the kernel may lack it, or memory or a descriptor may.
const retryInterval = time.Minute

// mostFiles bounds the files of one question, and mostOpened what is read as its answer.
const (
	mostFiles  = 4096
	mostOpened = 8 << 20 // bytes
	recordSize = 24
)

// errBusy is the error of a question while the answer to an earlier one is still being read.
var errBusy = errors.New("the last reading of who opened the files has not returned")

// Read returns who opened the files, of all processes that have one open. It ends with ctx: the kernel takes each open file in turn, and
// where its user closes it meanwhile, the thread that reads waits for that close.
func (r *Reader) Read(ctx context.Context, files []File) ([]Opened, error) {
	type answer struct {
		opened []Opened
		err    error
	}
	answers := make(chan answer, 1)
	r.once.Do(func() { r.slot = make(chan struct{}, 1) })
	select {
	case r.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, errBusy
	}
	go func() { // ends with the reading; there is one at a time
		opened, err := r.read(files)
		<-r.slot // before the answer, which the next question may follow at once
		answers <- answer{opened, err}
	}()
	select {
	case a := <-answers:
		return a.opened, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot read who opened the files: %w", ctx.Err())
	}
}

func (r *Reader) read(files []File) (out []Opened, err error) {
	if r.iter == nil && (r.tried.IsZero() || time.Since(r.tried) > retryInterval) {
		r.tried, r.err = time.Now(), r.load()
	}
	if r.err != nil {
		return nil, r.err
	}
	if len(files) > mostFiles {
		return nil, fmt.Errorf("cannot read who opened %d files: at most %d", len(files), mostFiles)
	}
	for _, f := range files {
		if err := r.files.Put(f.key(), uint64(0)); err != nil {
			return nil, fmt.Errorf("cannot name a file to the kernel: %w", err)
		}
		defer func() { _ = r.files.Delete(f.key()) }() // It is there: it was put.
	}
	stream, err := r.iter.Open()
	if err != nil {
		return nil, fmt.Errorf("cannot list the open files: %w", err)
	}
	defer stream.Close()
	b, err := boundedread.All(stream, mostOpened)
	if err != nil {
		return nil, fmt.Errorf("cannot list the open files: %w", err)
	}
	for ; len(b) >= recordSize; b = b[recordSize:] {
		out = append(out, Opened{
			PID:  int(binary.NativeEndian.Uint32(b[16:])),
			UID:  binary.NativeEndian.Uint32(b[20:]),
			File: File{Device: binary.NativeEndian.Uint64(b), Ino: binary.NativeEndian.Uint64(b[8:])},
		})
	}
	return out, nil
}

func (f File) key() [16]byte {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:], f.Device)
	binary.NativeEndian.PutUint64(b[8:], f.Ino)
	return b
}

func (r *Reader) load() (err error) {
	if err := descent.InFirstNamespace(); err != nil {
		return err
	}
	var l layout
	if err := descent.Layout(
		descent.Field{Struct: "file", Name: "f_mode", At: &l.mode}, descent.Field{Struct: "file", Name: "f_inode", At: &l.inode},
		descent.Field{Struct: "file", Name: "f_cred", At: &l.cred}, descent.Field{Struct: "inode", Name: "i_rdev", At: &l.rdev},
		descent.Field{Struct: "inode", Name: "i_ino", At: &l.ino}, descent.Field{Struct: "inode", Name: "i_sb", At: &l.sb},
		descent.Field{Struct: "super_block", Name: "s_dev", At: &l.dev}, descent.Field{Struct: "cred", Name: "uid", At: &l.uid},
		descent.Field{Struct: "task_struct", Name: "tgid", At: &l.tgid},
	); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot ask the kernel who opened a file: %w", err)
		}
	}()
	if r.files, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "gpushare_files", Type: ebpf.Hash, KeySize: 16, ValueSize: 8, MaxEntries: mostFiles,
	}); err != nil {
		return err
	}
	if r.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "gpushare_opener", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: "task_file",
		Instructions: program(&l, r.files), License: descent.License,
	}); err != nil {
		return errors.Join(err, r.files.Close())
	}
	if r.iter, err = link.AttachIter(link.IterOptions{Program: r.prog}); err != nil {
		return errors.Join(err, r.prog.Close(), r.files.Close())
	}
	return nil
}

// layout is where the kernel that runs has the fields that the program reads, in bytes.
type layout struct{ mode, inode, cred, rdev, ino, sb, dev, uid, tgid int16 }

// modePath marks a descriptor that only names its file, O_PATH of open(2) (FMODE_PATH in include/linux/fs.h).
const modePath = 1 << 14

// Where the arguments of the program are (struct bpf_iter__task_file in kernel/bpf/task_iter.c), and its places on the stack.
const (
	metaAt, taskAt, fileAt = 0, 8, 24
	keyAt                  = -recordSize
	pidAt, uidAt           = keyAt + 16, keyAt + 20
)

// program runs for each open file of each process, and writes those that the map has: the key, the process and the user. The value in the
// map is the process and the user that were written last: a process may have a file open as often as it likes.
func program(l *layout, files *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, taskAt, asm.DWord),
		asm.JEq.Imm(asm.R7, 0, "end"), // The last call has none.
		asm.LoadMem(asm.R8, asm.R6, fileAt, asm.DWord),
		asm.JEq.Imm(asm.R8, 0, "end"),
		asm.LoadMem(asm.R1, asm.R8, l.mode, asm.Word),
		asm.JSet.Imm(asm.R1, modePath, "end"),
		asm.LoadMem(asm.R9, asm.R8, l.inode, asm.DWord),
		asm.LoadMem(asm.R1, asm.R9, l.rdev, asm.Word),
		asm.Mov.Imm(asm.R2, 0),
		asm.JNE.Imm(asm.R1, 0, "key"), // a device
		asm.LoadMem(asm.R2, asm.R9, l.ino, asm.DWord),
		asm.LoadMem(asm.R1, asm.R9, l.sb, asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, l.dev, asm.Word),
		asm.StoreMem(asm.RFP, keyAt, asm.R1, asm.DWord).WithSymbol("key"),
		asm.StoreMem(asm.RFP, keyAt+8, asm.R2, asm.DWord),
		asm.LoadMapPtr(asm.R1, files.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.LoadMem(asm.R1, asm.R7, l.tgid, asm.Word),
		asm.StoreMem(asm.RFP, pidAt, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R8, l.cred, asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, l.uid, asm.Word),
		asm.StoreMem(asm.RFP, uidAt, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.RFP, pidAt, asm.DWord),
		asm.LoadMem(asm.R2, asm.R9, 0, asm.DWord),
		asm.JEq.Reg(asm.R1, asm.R2, "end"), // It was written last.
		asm.LoadMem(asm.R1, asm.R6, metaAt, asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), // its seq_file, the first field of struct bpf_iter_meta
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.Mov.Imm(asm.R3, recordSize),
		asm.FnSeqWrite.Call(),
		asm.JNE.Imm(asm.R0, 0, "end"), // What does not fit is written at the next read.
		asm.LoadMem(asm.R1, asm.RFP, pidAt, asm.DWord),
		asm.StoreMem(asm.R9, 0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	}
}
