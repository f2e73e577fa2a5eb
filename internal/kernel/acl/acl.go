// Package acl reads and sets POSIX access control lists of files. It does not decide who is in one.
package acl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that a file system has no access control lists.
var ErrUnsupported = errors.New("its file system has no access control lists")

// Perm are permissions as in a mode: 4 to read, 2 to write, 1 to execute or, for a directory, to search.
type Perm uint16

// Named are the permissions of one user or group.
type Named struct {
	Group bool
	ID    uint32
	Perm  Perm
}

// List is an access control list. Without Named it is an ordinary mode, and Mask is Group.
type List struct {
	Owner, Group, Other Perm
	Mask                Perm    // what Group and all of Named have at most
	Named               []Named // users before groups, each ascending
}

// Of is the list of a mode.
func Of(mode os.FileMode) List {
	p := Perm(mode.Perm())
	return List{Owner: p >> 6 & 7, Group: p >> 3 & 7, Mask: p >> 3 & 7, Other: p & 7}
}

// Mode is the mode that a file with this list has: the bits of the group are the mask.
func (l List) Mode() os.FileMode { return os.FileMode(l.Owner<<6 | l.Mask<<3 | l.Other) }

// Equal reports whether both give the same permissions to the same users and groups.
func (l List) Equal(o List) bool {
	return l.Owner == o.Owner && l.Group == o.Group && l.Other == o.Other && l.Mask == o.Mask && slices.Equal(l.Named, o.Named)
}

// Sort puts Named in order.
func (l List) Sort() {
	slices.SortFunc(l.Named, func(a, b Named) int {
		if a.Group != b.Group {
			if b.Group {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.ID, b.ID)
	})
}

// The format of the attribute: a version, and entries of a tag, permissions and an id, all little endian. Source:
// include/uapi/linux/posix_acl_xattr.h and posix_acl.h of Linux.
const (
	attribute = "system.posix_acl_access"
	version   = 2
	entrySize = 8

	tagOwner  = 0x01
	tagUser   = 0x02
	tagGroup  = 0x04
	tagNamed  = 0x08
	tagMask   = 0x10
	tagOther  = 0x20
	undefined = ^uint32(0) // the id of entries that have none

	fewEntries = 128      // more than most lists have
	maxSize    = 64 << 10 // of an attribute, in bytes: XATTR_SIZE_MAX
)

// encode returns the attribute of a list with named entries.
func (l List) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, version)
	add := func(tag uint16, p Perm, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, uint16(p))
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	add(tagOwner, l.Owner, undefined)
	for _, n := range l.Named {
		if !n.Group {
			add(tagUser, n.Perm, n.ID)
		}
	}
	add(tagGroup, l.Group, undefined)
	for _, n := range l.Named {
		if n.Group {
			add(tagNamed, n.Perm, n.ID)
		}
	}
	add(tagMask, l.Mask, undefined)
	add(tagOther, l.Other, undefined)
	return b
}

func decode(b []byte) (List, error) {
	if len(b) < 4 || (len(b)-4)%entrySize != 0 || binary.LittleEndian.Uint32(b) != version {
		return List{}, fmt.Errorf("unknown format of %d bytes", len(b))
	}
	var l List
	masked := false
	for b = b[4:]; len(b) > 0; b = b[entrySize:] {
		p, id := Perm(binary.LittleEndian.Uint16(b[2:])), binary.LittleEndian.Uint32(b[4:])
		switch tag := binary.LittleEndian.Uint16(b); tag {
		case tagOwner:
			l.Owner = p
		case tagUser, tagNamed:
			l.Named = append(l.Named, Named{Group: tag == tagNamed, ID: id, Perm: p})
		case tagGroup:
			l.Group = p
		case tagMask:
			l.Mask, masked = p, true
		case tagOther:
			l.Other = p
		default:
			return List{}, fmt.Errorf("unknown tag %#x", tag)
		}
	}
	if !masked {
		l.Mask = l.Group
	}
	l.Sort()
	return l, nil
}

// Read reads the list of a file, or its mode where it has none.
func Read(path string) (List, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return List{}, err
	}
	b := make([]byte, fewEntries*entrySize)
	n, err := unix.Lgetxattr(path, attribute, b)
	if errors.Is(err, unix.ERANGE) {
		b = make([]byte, maxSize)
		n, err = unix.Lgetxattr(path, attribute, b)
	}
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
		return Of(info.Mode()), nil
	case err != nil:
		return List{}, &os.PathError{Op: "read the access control list of", Path: path, Err: err}
	}
	l, err := decode(b[:n])
	if err != nil {
		return List{}, &os.PathError{Op: "read the access control list of", Path: path, Err: err}
	}
	return l, nil
}

// Write sets the list of a file that is no link; one without named entries is a mode. It does not read it back. The error is
// ErrUnsupported where the file system has no lists.
func Write(path string, l List) error {
	if len(l.Named) > 0 {
		err := unix.Lsetxattr(path, attribute, l.encode(), 0)
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = ErrUnsupported
		}
		if err != nil {
			return &os.PathError{Op: "set the access control list of", Path: path, Err: err}
		}
		return nil
	}
	err := unix.Lremovexattr(path, attribute)
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
		return &os.PathError{Op: "remove the access control list of", Path: path, Err: err}
	}
	return os.Chmod(path, l.Mode())
}
