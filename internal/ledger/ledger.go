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
	FileSize int64        // bytes of one file before the next is begun; 0: 4 MiB
	Files    int          // how many files are kept; 0: 8
	Queue    int          // lines that may wait for a slow disk; 0: 1024
	OnLoss   func()       // called after an entry was lost, from any goroutine; it does not block
	Log      *slog.Logger // gets one line when lines begin to be lost and one when they no longer are; nil: nothing is logged
}

// Ledger appends to files in one directory. Its goroutine does all writing, until Close.
type Ledger struct {
	dir     string
	name    string
	o       Options
	lost    atomic.Uint64
	queue   chan json.RawMessage
	flush   chan chan End
	stopped chan struct{}
	done    chan struct{}
	stop    sync.Once

	// Used by the writer only.
	file     *os.File
	number   uint64
	size     int64
	head     head
	reported uint64 // entries that were lost and are counted in a line
	losing   bool
}

// End is the end of a ledger at some moment. Read and Verify stop there, because a line may be half written after it. The zero
// value is the end of a ledger that no process writes.
type End struct {
	number uint64
	size   int64
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
		dir: dir, name: name, o: o, queue: make(chan json.RawMessage, o.Queue), flush: make(chan chan End),
		stopped: make(chan struct{}), done: make(chan struct{}), number: 1,
	}
	if len(numbers) > 0 {
		l.number = numbers[len(numbers)-1]
	}
	if l.head, err = findHead(dir, name, numbers); err != nil {
		return nil, fmt.Errorf("cannot open the %s ledger: %w", name, err)
	}
	go l.write()
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

// Lost counts the entries that were lost since Open.
func (l *Ledger) Lost() uint64 { return l.lost.Load() }

// Flush waits until everything appended before is written, or ctx ends. It returns the end of the ledger.
func (l *Ledger) Flush(ctx context.Context) (End, error) {
	ack := make(chan End, 1)
	select {
	case l.flush <- ack:
	case <-l.done:
		return End{}, nil
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
		case ack := <-l.flush:
			l.drain()
			ack <- l.end()
		case <-l.stopped:
			l.drain()
			l.closeFile()
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
	if l.file == nil {
		return End{number: l.number, size: -1}
	}
	return End{number: l.number, size: l.size}
}

// writeLine writes one line completely or not at all.
func (l *Ledger) writeLine(value json.RawMessage) {
	lost := l.lost.Load()
	line, err := encode(Line{Number: l.head.number + 1, Previous: l.head.hash, Lost: lost - l.reported, Entry: value})
	if err == nil && len(line) > maxLine {
		err = fmt.Errorf("it has %d bytes, and at most %d are read again", len(line), maxLine)
	}
	if err == nil {
		err = l.ensureFile(int64(len(line)))
	}
	if err == nil {
		if _, err = l.file.Write(line); err == nil {
			l.size += int64(len(line))
			l.head, l.reported = head{l.head.number + 1, hashOf(line[:len(line)-1])}, lost
		} else if cut := l.file.Truncate(l.size); cut != nil {
			// Half a line remains. A new file is begun, and readers skip the half.
			err = errors.Join(err, cut)
			l.closeFile()
			l.number++
		}
	}
	if err != nil {
		l.lose()
	}
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

// ensureFile opens a file with space for n bytes, and removes the oldest files.
func (l *Ledger) ensureFile(n int64) error {
	if l.file != nil && l.size > 0 && l.size+n > l.o.FileSize {
		l.closeFile()
		l.number++
	}
	if l.file != nil {
		return nil
	}
	f, err := os.OpenFile(l.path(l.number), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
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
	info, err = f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size = f, info.Size()
	return l.prune()
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
	if err := l.file.Close(); err != nil && l.o.Log != nil {
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
		if err := os.Remove(l.path(have[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
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
