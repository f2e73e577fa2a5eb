package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Options bound a ledger. The zero value is valid.
type Options struct {
	FileSize int64  // bytes of one file before the next is begun; 0: 4 MiB
	Files    int    // how many files are kept; 0: 8
	Queue    int    // lines that may wait for a slow disk; 0: 1024
	OnLoss   func() // called after an entry was lost, from any goroutine; it does not block
	// Anchor is a file outside of the directory, for what is known of the chain; empty: none.
	Anchor string
	Known  Point  // a line that is known from elsewhere and was on the disk, as from before the file of the anchor was removed
	Boot   string // the kernel's boot id
	// OnDamage is called when files are not as they were written, with one sentence, from Open or the writer; it does not block.
	OnDamage func(text string)
	Log      *slog.Logger // gets one line when lines begin to be lost and one when they no longer are; nil: nothing is logged
}

// Ledger appends to files in one directory. Its goroutine does all writing, until Close.
type Ledger struct {
	dir      string
	name     string
	o        Options
	lost     atomic.Uint64
	open     atomic.Pointer[openFile] // the file that is written; nil: none is open
	removals atomic.Uint64
	queue    chan json.RawMessage
	flush    chan request
	stopped  chan struct{}
	done     chan struct{}
	stop     sync.Once

	// Used by the writer only.
	file     *os.File
	number   uint64
	size     int64
	anchor   anchor
	anchored anchorFile
	sizes    map[uint64]int64 // of the files that are there, except the open one
	unsynced bool             // lines were written since the last sync
	earlier  []uint64         // files of an earlier process that are not known to be on the disk
	torn     uint64           // lines without their end that were ended, and are counted in no line
	crash    bool             // lines are missing before the next one, and a loss of power may explain it
	kept     uint64           // the last line before them
	reported uint64           // entries that were lost and are counted in a line
	losing   bool
	failing  bool // the anchor cannot be written
	last     End  // set before done is closed
}

// request asks the writer for the end, after it has written what waits. With sync all is on the disk, and all files are compared
// with what was written.
type request struct {
	sync  bool
	reply chan<- End
}

// End is the end of a ledger at some moment. Read and Verify stop there, because a line may be half written after it. The zero
// value is the end of a ledger that no process writes.
type End struct {
	number  uint64
	size    int64
	anchor  *anchor // nil: nothing is known outside of the files
	removed bool    // the file of the anchor was removed: only its last line is known
	boot    string  // the kernel's boot id; empty: not known
	written bool    // the ledger is written
}

// Point returns the newest line, as the ledger knows it outside of its files.
func (e End) Point() Point {
	if e.anchor == nil {
		return Point{}
	}
	return e.anchor.Last
}

// File returns the number of the file that is written.
func (e End) File() uint64 { return e.number }

// AuditAnchor is the name of the anchor of the audit, below the directory of the state.
const AuditAnchor = "audit.anchor"

// AtRest returns the end of a ledger that no process writes, from its anchor and a line as in Options.Known. boot is the
// kernel's boot id, if the files are those of this host.
func AtRest(anchorPath string, known Point, boot string) (End, error) {
	a, ok, err := readAnchor(anchorPath)
	if err != nil {
		return End{}, fmt.Errorf("cannot read the anchor of a ledger: %w", err)
	}
	if !ok && known.Number == 0 {
		return End{}, nil
	}
	a.know(known)
	if !ok {
		a.Since = known.Number
	}
	return End{anchor: &a, removed: !ok, boot: boot}, nil
}

// Open opens the ledger of this name in a directory, which is created if it is missing. Only root may read it.
func Open(dir, name string, o Options) (*Ledger, error) {
	if o.FileSize == 0 {
		o.FileSize = 4 << 20
	}
	if o.Files == 0 {
		o.Files = 8
	}
	if o.Queue == 0 {
		o.Queue = 1024
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot open the %s ledger: %w", name, err)
	}
	numbers, err := numbers(dir, name)
	if err != nil {
		return nil, fmt.Errorf("cannot open the %s ledger: %w", name, err)
	}
	l := &Ledger{
		dir: dir, name: name, o: o, queue: make(chan json.RawMessage, o.Queue), flush: make(chan request),
		stopped: make(chan struct{}), done: make(chan struct{}), number: 1, sizes: map[uint64]int64{}, anchored: anchorFile{path: o.Anchor},
	}
	if len(numbers) > 0 {
		l.number = numbers[len(numbers)-1]
	}
	if err := l.resume(numbers); err != nil {
		return nil, fmt.Errorf("cannot open the %s ledger: %w", name, err)
	}
	go l.write() // ends with Close
	return l, nil
}

// Append adds an entry, any value that encodes as JSON. It never waits: when the disk is too slow, the entry is lost and
// counted. It returns an error only when the entry does not encode.
func (l *Ledger) Append(entry any) error {
	value, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("cannot encode an entry of the %s ledger: %w", l.name, err)
	}
	select {
	case <-l.stopped:
		l.lose()
		return nil
	default:
	}
	select {
	case l.queue <- value:
	default:
		l.lose()
	}
	return nil
}

func (l *Ledger) lose() {
	l.lost.Add(1)
	if l.o.OnLoss != nil {
		l.o.OnLoss()
	}
}

// Lost counts the entries that were lost since Open, and those of the process before that no line counts.
func (l *Ledger) Lost() uint64 { return l.lost.Load() }

// Flush waits until everything appended before is written, or ctx ends. It returns the end of the ledger.
func (l *Ledger) Flush(ctx context.Context) (End, error) { return l.request(ctx, false) }

// Sync is Flush, and waits until everything is on the disk. It compares all files with what was written.
func (l *Ledger) Sync(ctx context.Context) (End, error) { return l.request(ctx, true) }

func (l *Ledger) request(ctx context.Context, sync bool) (End, error) {
	ack := make(chan End, 1)
	select {
	case l.flush <- request{sync, ack}:
	case <-l.done:
		return l.last, nil
	case <-ctx.Done():
		return End{}, fmt.Errorf("cannot flush the %s ledger: %w", l.name, ctx.Err())
	}
	select {
	case end := <-ack:
		return end, nil
	case <-ctx.Done():
		return End{}, fmt.Errorf("cannot flush the %s ledger: %w", l.name, ctx.Err())
	}
}

// Verify verifies the ledger while it is written.
func (l *Ledger) Verify(ctx context.Context, points ...Point) (v Verification, err error) {
	for range 5 {
		before, err := l.Flush(ctx)
		if err != nil {
			return v, err
		}
		if v, err = Verify(l.dir, l.name, before, points...); err != nil {
			return v, err
		}
		after, err := l.Flush(ctx)
		if err != nil || after.anchor.Removed == before.anchor.Removed {
			return v, err
		}
		// The bound has removed a file meanwhile, which may be why its lines were not found.
	}
	return v, nil
}

// Close writes the queued entries and stops the writer, or returns when ctx ends. Entries appended later are lost.
func (l *Ledger) Close(ctx context.Context) error {
	l.stop.Do(func() { close(l.stopped) })
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot close the %s ledger: %w", l.name, ctx.Err())
	}
}

// write is the writer.
func (l *Ledger) write() {
	defer close(l.done)
	for {
		select {
		case value := <-l.queue:
			l.writeLine(value)
		case r := <-l.flush:
			l.drain()
			if r.sync {
				l.inspectAll()
				l.sync(false)
			}
			r.reply <- l.end()
		case <-l.stopped:
			l.drain()
			l.sync(true)
			l.closeFile()
			if err := l.anchored.close(); err != nil {
				l.anchorFailed(err)
			}
			l.last = l.end()
			l.last.written = false
			return
		}
	}
}

func (l *Ledger) drain() {
	for {
		select {
		case value := <-l.queue:
			l.writeLine(value)
		default:
			return
		}
	}
}

// end returns the end of the file that is written. Without an open one, the last file is complete.
func (l *Ledger) end() End {
	a := l.anchor
	end := End{number: l.number, size: -1, anchor: &a, boot: l.o.Boot, written: true}
	if l.file != nil {
		end.size = l.size
	}
	return end
}

// writeLine writes one line completely or not at all.
func (l *Ledger) writeLine(value json.RawMessage) {
	lost := l.lost.Load()
	err := l.appendLine(value, lost)
	if err != nil {
		l.lose()
	}
	l.saveAnchor(false)
	if (err != nil) != l.losing {
		l.losing = err != nil
		if l.o.Log == nil {
			return
		}
		if l.losing {
			l.o.Log.Warn("entries of a ledger are being lost", "ledger", l.name, "error", err.Error())
		} else {
			l.o.Log.Info("entries of a ledger are written again", "ledger", l.name, "lost", l.lost.Load())
		}
	}
}

func (l *Ledger) appendLine(value json.RawMessage, lost uint64) error {
	l.inspect()
	head := l.anchor.Last
	line, err := l.encode(head, value, lost)
	if err != nil {
		return err
	}
	torn := l.torn
	if err := l.ensureFile(int64(len(line))); err != nil {
		return err
	}
	if l.torn > torn { // Opening the file has ended a line that a kill left.
		if line, err = l.encode(head, value, lost); err != nil {
			return err
		}
	}
	if _, err := l.file.Write(line); err != nil {
		cut := l.file.Truncate(l.size)
		if cut != nil {
			// Half a line remains. A new file is begun, and readers skip the half.
			l.closeFile()
			l.number++
		}
		return errors.Join(err, cut)
	}
	l.size += int64(len(line))
	l.anchor.Last, l.anchor.File = Point{head.Number + 1, hashOf(line[:len(line)-1]), timeOf(value)}, l.number
	l.anchor.Closed, l.anchor.Crash, l.unsynced = false, false, true
	l.reported, l.torn, l.crash, l.kept = lost, 0, false, 0
	return nil
}

// encode returns the line that follows a head.
func (l *Ledger) encode(head Point, value json.RawMessage, lost uint64) ([]byte, error) {
	line, err := encode(Line{
		Number:   head.Number + 1,
		Previous: head.Hash,
		Lost:     lost - l.reported,
		Torn:     l.torn,
		Crash:    l.crash,
		Kept:     l.kept,
		Entry:    value,
	})
	if err == nil && len(line) > maxLine {
		err = fmt.Errorf("it has %d bytes, and at most %d are read again", len(line), maxLine)
	}
	return line, err
}

// ensureFile opens a file with space for n bytes, and removes the oldest files.
func (l *Ledger) ensureFile(n int64) error {
	if l.file != nil && l.size > 0 && l.size+n > l.o.FileSize {
		l.closeFile()
		l.number++
	}
	if l.file != nil {
		return nil
	}
	f, err := l.openFile()
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		// A kill may have left half a line. The next entry must begin a new line.
		err = terminate(l.path(l.number), f, info.Size())
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	before := info.Size()
	info, err = f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if info.Size() > before {
		l.torn++
	}
	l.file, l.size = f, info.Size()
	l.open.Store(&openFile{l.path(l.number), info})
	delete(l.sizes, l.number)
	return l.prune()
}

// openFile opens the file of the next line, also if the directory was removed.
func (l *Ledger) openFile() (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(l.path(l.number), flags, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(l.dir, 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(l.path(l.number), flags, 0o600)
	}
	return f, err
}

func terminate(path string, f *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	r, err := os.Open(path)
	if err != nil {
		return err
	}
	last := make([]byte, 1)
	_, err = r.ReadAt(last, size-1)
	if err = errors.Join(err, r.Close()); err != nil || last[0] == '\n' {
		return err
	}
	_, err = f.Write([]byte("\n"))
	return err
}

func (l *Ledger) closeFile() {
	if l.file == nil {
		return
	}
	l.sizes[l.number] = l.size
	var err error
	if l.unsynced { // A later sync has only the next file.
		err = l.file.Sync()
	}
	l.open.Store(nil)
	if err = errors.Join(err, l.file.Close()); err != nil && l.o.Log != nil {
		l.o.Log.Warn("cannot close a file of a ledger", "ledger", l.name, "error", err.Error())
	}
	l.file = nil
}

// prune removes the files beyond the number that is kept.
func (l *Ledger) prune() error {
	have, err := numbers(l.dir, l.name)
	if err != nil {
		return err
	}
	for len(have) > l.o.Files {
		last, err := lastOf(l.path(have[0]))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		removed, oldest := l.anchor.Removed, l.anchor.Oldest
		if last.Number > removed.Number {
			l.anchor.Removed = last
		}
		l.anchor.Oldest = have[1]
		if !l.saveAnchor(true) { // before: lines that are missing and not in it were removed by another
			l.anchor.Removed, l.anchor.Oldest = removed, oldest
			return nil // It is removed with a later one.
		}
		if err := os.Remove(l.path(have[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		delete(l.sizes, have[0])
		have = have[1:]
	}
	return nil
}

func (l *Ledger) path(number uint64) string { return path(l.dir, l.name, number) }

func path(dir, name string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%s-%06d.log", name, number))
}

// numbers returns the numbers of the existing files, the oldest first.
func numbers(dir, name string) ([]uint64, error) {
	entries, _, err := boundedread.Entries(dir, boundedread.Files)
	if err != nil {
		return nil, err
	}
	var found []uint64
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), name+"-")
		if !ok {
			continue
		}
		text, ok = strings.CutSuffix(text, ".log")
		if n, err := strconv.ParseUint(text, 10, 64); ok && err == nil {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found, nil
}
