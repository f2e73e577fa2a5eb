package fuse

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Connection is one FUSE file system between the kernel and its server.
type Connection struct {
	// Number is the device number of the file system as the kernel has it (kernel_dev_t): a directory of the control files has
	// this name.
	Number uint32
	// Owner is the user who mounted it, outside of all user namespaces: the option user_id of the mount.
	Owner uint32
	// Waiting is how many requests wait for the server.
	Waiting int
}

// NumberOf is the number of the connection behind a device number, as mountinfo writes it. A file system without a block device has the
// major number 0.
func NumberOf(major, minor uint32) uint32 { return major<<20 | minor }

// ControlFiles is where hosts mount the control files.
const ControlFiles = "/sys/fs/fuse/connections"

// controlMagic is FUSE_CTL_SUPER_MAGIC of the kernel.
const controlMagic = 0x65735543

// Control are the control files.
type Control struct {
	dirs []int // the same directory on different mounts: one may be read-only
}

// Open opens the control files: where the host has mounted them, and on a mount of its own that is attached to no directory, so that no
// process of the host sees it. Close it.
func Open() (*Control, error) {
	c := &Control{}
	fd, err := openMounted()
	if err == nil {
		c.dirs = append(c.dirs, fd)
	}
	fd, own := mountDetached()
	if own == nil {
		c.dirs = append(c.dirs, fd)
	}
	if len(c.dirs) == 0 {
		return nil, fmt.Errorf("cannot open the control files of FUSE: %w", errors.Join(err, own))
	}
	return c, nil
}

// Mounted reports whether the host has mounted the control files.
func Mounted() bool {
	fd, err := openMounted()
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// openMounted opens the directory where the host has mounted it.
func openMounted() (int, error) {
	fd, err := unix.Open(ControlFiles, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: ControlFiles, Err: err}
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != controlMagic {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: nothing is mounted there", ControlFiles)
	}
	return fd, nil
}

// mountDetached makes a mount that only its descriptor refers to. It ends with the descriptor.
func mountDetached() (int, error) {
	context, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return -1, os.NewSyscallError("fsconfig", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("openat", err)
	}
	return fd, nil
}

// Close closes the directories.
func (c *Control) Close() {
	for _, fd := range c.dirs {
		unix.Close(fd)
	}
}

// mostConnections bounds a list: a user may have thousands of file systems in namespaces of their own.
const mostConnections = 4096

// Waiting lists the connections with requests that wait for their server.
func (c *Control) Waiting() ([]Connection, error) {
	fd, err := unix.Openat(c.dirs[0], ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot list the FUSE connections: %w", err)
	}
	dir := os.NewFile(uintptr(fd), ControlFiles)
	defer dir.Close()
	names, err := boundedread.FirstNames(dir, mostConnections)
	if err != nil {
		return nil, fmt.Errorf("cannot list the FUSE connections: %w", err)
	}
	var out []Connection
	for _, name := range names {
		number, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			continue
		}
		// One that ended meanwhile is left out.
		if conn, err := c.read(c.dirs[0], uint32(number), nil); err == nil && conn.Waiting > 0 {
			out = append(out, conn)
		}
	}
	return out, nil
}

// read opens the directory of a connection and reads it. The number of a connection that has ended may become that of another one:
// all is read below one descriptor, and then is passed to what uses it.
func (c *Control) read(dir int, number uint32, use func(fd int, conn Connection) error) (Connection, error) {
	conn := Connection{Number: number}
	fd, err := unix.Openat(dir, strconv.FormatUint(uint64(number), 10), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return conn, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return conn, err
	}
	conn.Owner = st.Uid
	if conn.Waiting, err = readNumber(fd, "waiting"); err != nil {
		return conn, err
	}
	if use == nil {
		return conn, nil
	}
	return conn, use(fd, conn)
}

// readNumber reads a control file.
func readNumber(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 32)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(buf[:n])))
}

// errOtherOwner: the number is another user's connection by now.
var errOtherOwner = errors.New("it is a connection of another user by now")

// Abort ends a connection: all requests fail at once, and those after it. The server learns it. A connection that has ended is no error.
func (c *Control) Abort(conn Connection) error {
	var failed error
	for _, dir := range c.dirs {
		_, err := c.read(dir, conn.Number, func(fd int, now Connection) error {
			if now.Owner != conn.Owner {
				return errOtherOwner
			}
			file, err := unix.Openat(fd, "abort", unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(file)
			_, err = unix.Write(file, []byte("1"))
			return err
		})
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		failed = err
		if errors.Is(err, errOtherOwner) {
			break
		}
	}
	return fmt.Errorf("cannot abort FUSE connection %d: %w", conn.Number, failed)
}
