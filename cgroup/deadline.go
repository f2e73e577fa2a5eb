package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deadlinesFile is the file of thaw deadlines in the run directory. Another format needs another name: a daemon then sees that
// a gpushare-thaw of another version does not answer.
const deadlinesFile = "thaw-deadlines.2"

// slotSize is the size of a slot of the file. Two slots fill a page: the kernel does not interrupt a write inside a page, so
// that no slot is left half written by a process that is killed.
const slotSize = 2048

// mappedSlots is how many slots are mapped into memory.
const mappedSlots = 1024

// headerSlot has the time until which the process that writes the file is known to run. The other slots have one scope each.
const headerSlot = 0

// deadline is a slot of the file of thaw deadlines: the time until which a process may keep a cgroup frozen. Times are of
// CLOCK_BOOTTIME, which cannot be set and which continues while the host is suspended. A slot is written before the
// freeze, in place, and stays valid until after the thaw.
type deadline struct {
	Until  time.Duration // whole milliseconds, at most latest; 0: the slot is free
	By     Process       // the process that froze it and will thaw it
	Boot   string        // the boot that the clock belongs to
	Cgroup string        // empty in the header
	ID     string        // the scope
}

// The parts of a slot. All numbers are little-endian, but the time is one word in the machine's order: 48 bits of
// milliseconds, and above them a checksum of 16 bits. It changes often, and is stored at once.
const (
	slotSum     = 0 // of all that follows but the time
	slotLengths = 4 // of boot, cgroup and id, 16 bits each
	slotUntil   = 16
	slotPID     = 24
	slotStart   = 32
	slotText    = 40 // boot, cgroup, id
)

// latest is the latest time of a slot.
const latest = Forever - Forever%time.Millisecond

// wholeMilliseconds is a time as a slot can have it, not before t.
func wholeMilliseconds(t time.Duration) time.Duration {
	if t >= latest {
		return latest
	}
	return (t + time.Millisecond - 1).Truncate(time.Millisecond)
}

// untilWord is a time with its checksum, which is a multiplicative hash. That of 0 is 0.
func untilWord(t time.Duration) uint64 {
	ms := uint64(t / time.Millisecond)
	return ms | ms*0x9e3779b97f4a7c15>>48<<48
}

// slotChecksum is that of a slot's n bytes.
func slotChecksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[slotLengths:slotUntil], crcTable), crcTable, b[slotPID:])
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

var (
	errDeadlineLong = errors.New("its cgroup path is too long for a thaw deadline")
	errSlotSum      = errors.New("its checksum is wrong")
)

// encode writes the deadline into a slot and returns the part that is used.
func (d *deadline) encode(slot *[slotSize]byte) ([]byte, error) {
	n := slotText + len(d.Boot) + len(d.Cgroup) + len(d.ID)
	if n > slotSize {
		return nil, errDeadlineLong
	}
	b := slot[:slotText]
	clear(b)
	binary.LittleEndian.PutUint16(b[slotLengths:], uint16(len(d.Boot)))
	binary.LittleEndian.PutUint16(b[slotLengths+2:], uint16(len(d.Cgroup)))
	binary.LittleEndian.PutUint16(b[slotLengths+4:], uint16(len(d.ID)))
	binary.NativeEndian.PutUint64(b[slotUntil:], untilWord(d.Until))
	binary.LittleEndian.PutUint64(b[slotPID:], uint64(d.By.PID))
	binary.LittleEndian.PutUint64(b[slotStart:], d.By.Start)
	b = append(append(append(b, d.Boot...), d.Cgroup...), d.ID...) // It stays in the slot: n was checked.
	binary.LittleEndian.PutUint32(b[slotSum:], slotChecksum(b))
	return b, nil
}

// slotView is a slot in the buffer that it was read into: its texts are valid until the next read. Jobs have thousands of slots, and each
// pass of gpushare-thaw, whose memory is limited, reads all.
type slotView struct {
	until            time.Duration
	by               Process
	boot, cgroup, id []byte
}

// deadline copies a slot.
func (v *slotView) deadline() deadline {
	return deadline{Until: v.until, By: v.by, Boot: string(v.boot), Cgroup: string(v.cgroup), ID: string(v.id)}
}

// is reports whether a slot has this deadline.
func (v *slotView) is(d *deadline) bool {
	return v.until == d.Until && v.by == d.By && string(v.boot) == d.Boot && string(v.cgroup) == d.Cgroup && string(v.id) == d.ID
}

// decode reads a slot.
func (v *slotView) decode(b []byte) error {
	*v = slotView{}
	if len(b) < slotText {
		return io.ErrUnexpectedEOF
	}
	boot, cg, id := int(binary.LittleEndian.Uint16(b[slotLengths:])), int(
		binary.LittleEndian.Uint16(b[slotLengths+2:]),
	), int(binary.LittleEndian.Uint16(b[slotLengths+4:]))
	sum := binary.LittleEndian.Uint32(b[slotSum:])
	if sum == 0 && boot == 0 && cg == 0 && id == 0 {
		return nil // never written
	}
	n := slotText + boot + cg + id
	if n > len(b) {
		return io.ErrUnexpectedEOF
	}
	word := binary.NativeEndian.Uint64(b[slotUntil:])
	until := time.Duration(word&(1<<48-1)) * time.Millisecond
	if slotChecksum(b[:n]) != sum || untilWord(until) != word {
		return errSlotSum
	}
	text := b[slotText:n]
	*v = slotView{
		until: until,
		by:    Process{PID: int(binary.LittleEndian.Uint64(b[slotPID:])), Start: binary.LittleEndian.Uint64(b[slotStart:])},
		boot:  text[:boot], cgroup: text[boot : boot+cg], id: text[boot+cg:],
	}
	return nil
}

// decodeDeadline reads a slot and copies it.
func decodeDeadline(b []byte) (deadline, error) {
	var v slotView
	if err := v.decode(b); err != nil {
		return deadline{}, err
	}
	return v.deadline(), nil
}

// deadlines is the open file. It is in a directory that only root may write.
type deadlines struct {
	f      *os.File
	name   string
	buf    []byte // of the last read, readSlots slots
	mapped []byte // the first slots; those beyond the end of the file must not be touched. nil: see mapSlots
}

// openDeadlines opens the file in the run directory and creates it when it is missing.
func openDeadlines(runDir string) (*deadlines, error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot create %s: %w", runDir, err)
	}
	name := filepath.Join(runDir, deadlinesFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the thaw deadlines: %w", err)
	}
	return &deadlines{f: f, name: name}, nil
}

// errDeadlinesRemoved: a gpushare-thaw that was started since then reads another file.
var errDeadlinesRemoved = errors.New(
	"the file of the thaw deadlines was removed while gpushared ran: restart gpushare-thaw, then gpushared",
)

// present reports whether the file still has its name.
func (f *deadlines) present() bool {
	open, err := f.f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.name)
	return err == nil && os.SameFile(open, named)
}

// write puts a deadline into a slot. It does not sync the file: after a power cut no process is frozen.
func (f *deadlines) write(slot int, d *deadline) error {
	var b [slotSize]byte
	used, err := d.encode(&b)
	if err == nil {
		_, err = f.f.WriteAt(used, int64(slot)*slotSize)
	}
	if err != nil {
		return fmt.Errorf("cannot write a thaw deadline: %w", err)
	}
	return nil
}

// mapSlots maps the file for move.
func (f *deadlines) mapSlots() error {
	b, err := unix.Mmap(int(f.f.Fd()), 0, mappedSlots*slotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("cannot map %s into memory: %w", f.name, os.NewSyscallError("mmap", err))
	}
	f.mapped = b
	return nil
}

// move writes a deadline of which only the time differs from what was written to the slot before. It is one store into memory:
// the scheduler of GPU time moves more than a hundred deadlines a second.
func (f *deadlines) move(slot int, d *deadline) (err error) {
	i := slot*slotSize + slotUntil
	if i >= len(f.mapped) {
		return f.write(slot, d)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil { // Another program has made the file shorter.
			err = f.write(slot, d)
		}
	}()
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&f.mapped[i])), untilWord(d.Until))
	return nil
}

// readSlots is how many slots are read at once.
const readSlots = 64

// read reads the whole file and calls found with every slot that is not free, in their order. A slot that cannot be read has an error.
// It returns how many slots the file has.
func (f *deadlines) read(found func(slot int, v *slotView, err error)) (slots int, err error) {
	if f.buf == nil {
		f.buf = make([]byte, readSlots*slotSize)
	}
	var v slotView
	for {
		n, err := f.f.ReadAt(f.buf, int64(slots)*slotSize)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("cannot read the thaw deadlines: %w", err)
		}
		for at := 0; at < n; at += slotSize {
			slot := f.buf[at:min(at+slotSize, n)]
			err := v.decode(slot)
			for try := 0; err != nil && try < 3; try++ { // It is being written.
				if again, readErr := f.f.ReadAt(slot, int64(slots)*slotSize); readErr == nil || errors.Is(readErr, io.EOF) {
					err = v.decode(slot[:again])
				}
			}
			if err != nil || v.until != 0 {
				found(slots, &v, err)
			}
			slots++
		}
		if n < len(f.buf) {
			return slots, nil
		}
	}
}

// readSlot reads one slot.
func (f *deadlines) readSlot(slot int) (deadline, error) {
	var b [slotSize]byte
	n, err := f.f.ReadAt(b[:], int64(slot)*slotSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return deadline{}, err
	}
	return decodeDeadline(b[:n])
}

// replaced reports whether the name refers to another file now, or to none.
func (f *deadlines) replaced() bool {
	open, err := f.f.Stat()
	if err != nil {
		return true
	}
	named, err := os.Stat(f.name)
	return err != nil || !os.SameFile(open, named)
}

func (f *deadlines) close() error {
	if f.mapped != nil {
		_ = unix.Munmap(f.mapped) // It cannot fail: this is the whole mapping.
		f.mapped = nil
	}
	return f.f.Close()
}
