package store

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"syscall"
)

// disk is a directory on a disk that can lose power, become full and fail, and that knows what a power cut may leave: the
// content of a file is safe after the file's Sync, names after the directory's.
type disk struct {
	names   map[string]*inode
	durable map[string]*inode
	pending []change // to names since the last Sync
	free    int64    // bytes that may still be allocated; -1: no end
	op      int      // operations done
	fail    int      // the operation that fails, from 1; 0: none
	err     error    // with this
	dead    bool     // every operation from fail on fails: the power is off
}

// inode is one file's content: as a reader sees it, and as it is on the disk.
type inode struct {
	data, safe []byte
	allocated  int64
}

// change is one change of names: to refers to the inode, from is removed.
type change struct {
	from, to string
	node     *inode
}

var errPower = errors.New("the power is off")

func newDisk() *disk {
	return &disk{names: map[string]*inode{}, durable: map[string]*inode{}, free: -1}
}

// step counts one operation and returns its error.
func (d *disk) step() error {
	d.op++
	if d.dead && d.fail > 0 && d.op >= d.fail {
		return errPower
	}
	if d.op == d.fail {
		return d.err
	}
	return nil
}

func (d *disk) apply(c change) {
	if c.from != "" {
		delete(d.names, c.from)
	}
	if c.to != "" {
		if old := d.names[c.to]; old != nil && old != c.node {
			d.freeBlocks(c.to, old)
		}
		d.names[c.to] = c.node
	}
	d.pending = append(d.pending, c)
}

// freeBlocks frees the blocks when this was the last name.
func (d *disk) freeBlocks(name string, n *inode) {
	for other, m := range d.names {
		if other != name && m == n {
			return
		}
	}
	if d.free >= 0 {
		d.free += n.allocated
	}
}

func (d *disk) Open(name string, flag int) (file, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	n := d.names[name]
	if n == nil {
		if flag&os.O_CREATE == 0 {
			return nil, os.ErrNotExist
		}
		n = &inode{}
		d.apply(change{to: name, node: n})
	}
	if flag&os.O_TRUNC != 0 {
		n.data = nil
		if d.free >= 0 {
			d.free += n.allocated
		}
		n.allocated = 0
	}
	return &handle{d: d, n: n}, nil
}

func (d *disk) Rename(from, to string) error {
	if err := d.step(); err != nil {
		return err
	}
	n := d.names[from]
	if n == nil {
		return os.ErrNotExist
	}
	if d.names[to] != n { // rename(2) does nothing when both are the same file
		d.apply(change{from: from, to: to, node: n})
	}
	return nil
}

func (d *disk) Link(from, to string) error {
	if err := d.step(); err != nil {
		return err
	}
	n := d.names[from]
	if n == nil {
		return os.ErrNotExist
	}
	if d.names[to] != nil {
		return os.ErrExist
	}
	d.apply(change{to: to, node: n})
	return nil
}

func (d *disk) Remove(name string) error {
	if err := d.step(); err != nil {
		return err
	}
	n := d.names[name]
	if n == nil {
		return os.ErrNotExist
	}
	d.freeBlocks(name, n)
	d.apply(change{from: name})
	return nil
}

func (d *disk) Sync() error {
	if err := d.step(); err != nil {
		return err
	}
	d.durable, d.pending = maps.Clone(d.names), nil
	return nil
}

type handle struct {
	d  *disk
	n  *inode
	at int
}

func (h *handle) Read(b []byte) (int, error) {
	if h.at >= len(h.n.data) {
		return 0, io.EOF
	}
	n := copy(b, h.n.data[h.at:])
	h.at += n
	return n, nil
}

// grow allocates up to size bytes in total and returns how many are allocated.
func (h *handle) grow(size int64) int64 {
	if more := size - h.n.allocated; more > 0 {
		if h.d.free >= 0 {
			more = min(more, h.d.free)
			h.d.free -= more
		}
		h.n.allocated += more
	}
	return h.n.allocated
}

func (h *handle) Write(b []byte) (int, error) {
	err := h.d.step()
	if err != nil {
		b = b[:len(b)/2] // a failed write has often written half
	}
	if can := int(h.grow(int64(h.at+len(b)))) - h.at; can < len(b) {
		b, err = b[:max(can, 0)], syscall.ENOSPC
	}
	h.n.data = append(slices.Clone(h.n.data[:h.at]), append(slices.Clone(b), h.n.data[min(len(h.n.data), h.at+len(b)):]...)...)
	h.at += len(b)
	return len(b), err
}

func (h *handle) Sync() error {
	if err := h.d.step(); err != nil {
		return err
	}
	h.n.safe = slices.Clone(h.n.data)
	return nil
}

func (h *handle) Size() (int64, error) { return int64(len(h.n.data)), h.d.step() }

func (h *handle) Truncate(size int64) error {
	if err := h.d.step(); err != nil {
		return err
	}
	h.n.data = slices.Clone(h.n.data[:min(size, int64(len(h.n.data)))])
	if free := h.n.allocated - size; free > 0 && h.d.free >= 0 {
		h.d.free += free
	}
	h.n.allocated = min(h.n.allocated, size)
	return nil
}

func (h *handle) Allocate(size int64) error {
	if err := h.d.step(); err != nil {
		return err
	}
	before := h.n.allocated
	if h.grow(size) < size {
		if h.d.free >= 0 {
			h.d.free += h.n.allocated - before
		}
		h.n.allocated = before
		return syscall.ENOSPC
	}
	if n := size - int64(len(h.n.data)); n > 0 {
		h.n.data = append(h.n.data, make([]byte, n)...)
	}
	return nil
}

func (h *handle) Close() error { return nil }

// afterPowerCut calls f with every disk that a power cut now may leave: any subset of the pending names, and unsynced content
// absent, half, complete or garbage.
func (d *disk) afterPowerCut(f func(*disk)) {
	subsets := 1 << min(len(d.pending), 8)
	for subset := range subsets {
		names := maps.Clone(d.durable)
		for i, c := range d.pending {
			if subset>>i&1 == 0 {
				continue
			}
			if c.from != "" {
				delete(names, c.from)
			}
			if c.to != "" {
				names[c.to] = c.node
			}
		}
		for _, content := range []func(*inode) []byte{
			func(n *inode) []byte { return n.safe },
			func(n *inode) []byte { return n.data },
			func(n *inode) []byte { return n.data[:len(n.data)/2] },
			func(n *inode) []byte { return make([]byte, len(n.data)) },
		} {
			left := newDisk()
			copies := map[*inode]*inode{}
			for name, n := range names {
				if copies[n] == nil {
					b := n.safe
					if !bytes.Equal(n.safe, n.data) {
						b = content(n)
					}
					copies[n] = &inode{data: slices.Clone(b), safe: slices.Clone(b), allocated: n.allocated}
				}
				left.names[name] = copies[n]
			}
			left.durable = maps.Clone(left.names)
			f(left)
		}
	}
}
