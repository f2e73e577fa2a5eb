package durable

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mostLinks is how many symbolic links are followed, as by the kernel.
const mostLinks = 40

// openDirectory opens the directory of a file, so that no later change of the path changes what it is. It follows a symbolic link only if
// no other user can have made it for this program: one of root or of the caller, and for other users than root one in a directory in which
// only its owner may make any.
func openDirectory(name string) (int, error) {
	if at, err := openWithoutLinks(name); err == nil {
		return at, nil
	}
	return openEach(name)
}

// openWithoutLinks opens a directory in one call, which fails if there is a symbolic link on the way: few paths have one, and a lease is
// recorded several times. Where a filter refuses the call, or the kernel is older than 5.6, it fails too.
func openWithoutLinks(name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	return unix.Openat2(unix.AT_FDCWD, name, &how)
}

// openEach opens a directory component by component.
func openEach(name string) (_ int, err error) {
	at, err := unix.Open(start(name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(at) // It was only a place.
		}
	}()
	links := 0
	for todo := components(name); len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		fd, err := unix.Openat(at, next, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			var target string
			if target, err = followed(at, next); err != nil {
				return -1, err
			}
			if links++; links > mostLinks {
				return -1, unix.ELOOP
			}
			todo = slices.Concat(components(target), todo)
			if !path.IsAbs(target) {
				continue
			}
			fd, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return -1, err
		}
		_ = unix.Close(at)
		at = fd
	}
	return at, nil
}

func start(name string) string {
	if path.IsAbs(name) {
		return "/"
	}
	return "."
}

func components(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." })
}

// followed returns the target of a symbolic link that may be followed.
func followed(at int, name string) (string, error) {
	var link, dir unix.Stat_t
	if err := unix.Fstatat(at, name, &link, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", err
	}
	if link.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", fmt.Errorf("%s is no directory", name)
	}
	if err := unix.Fstatat(at, "", &dir, unix.AT_EMPTY_PATH); err != nil {
		return "", err
	}
	self := uint32(os.Geteuid())
	private := self != 0 && dir.Mode&0o022 == 0
	if link.Uid != 0 && link.Uid != self && !private {
		return "", fmt.Errorf("%s is a symbolic link of uid %d, which is not followed", name, link.Uid)
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}
