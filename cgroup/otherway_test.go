package cgroup

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const mountsOfAHost = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
24 22 0:22 / /sys rw - sysfs sysfs rw
25 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
26 22 0:30 / /net rw - autofs systemd-1 rw
27 22 0:31 / /home rw - nfs4 server:/home rw
28 22 0:32 / /mnt/with\040space rw - ext4 /dev/sdb1 rw
29 22 0:26 /system.slice /mnt/part rw - cgroup2 cgroup2 rw
30 22 0:33 / /over rw - ext4 /dev/sdc1 rw
31 22 0:34 / /over rw - fuse.sshfs host: rw
`

// A path that leads into the hierarchy by another way than its mount is found; no link is read where a server may not answer.
func TestOtherWay(t *testing.T) {
	links := map[string]string{
		"/cg": "/sys/fs/cgroup", "/a": "b", "/b": "/cg/x", "/loop": "loop", "/up": "mnt/../sys/fs/cgroup", "/far": "/home/alice/cg",
		"/mnt/with space/cg": "../../cg",
	}
	for name, want := range map[string]string{
		"/system.slice/slurmstepd.scope/job_7": "", // as in /proc/PID/cgroup: there is no such file
		"/cg":                                  "/sys/fs/cgroup",
		"/cg/system.slice":                     "/sys/fs/cgroup",
		"/a/y":                                 "/sys/fs/cgroup",
		"/up/x":                                "/sys/fs/cgroup",
		"/mnt/with space/cg/x":                 "/sys/fs/cgroup",
		"/mnt/part/x":                          "/mnt/part",
		"/sys/fs/cgroup/../cgroup/x":           "/sys/fs/cgroup",
		"/loop/x":                              "",
		"/home/alice/cg/x":                     "",
		"/far/x":                               "",
		"/net/host/cg":                         "",
		"/over/cg":                             "",
		"/usr/lib":                             "",
	} {
		read := func(path string) (string, error) {
			for _, hangs := range []string{"/home", "/net", "/over"} {
				if strings.HasPrefix(path, hangs) {
					t.Errorf("%s: a link is read that may hang: %s", name, path)
				}
			}
			if to, ok := links[path]; ok {
				return to, nil
			}
			return "", unix.EINVAL
		}
		if got := otherWay(name, mountsOf(mountsOfAHost), read); got != want {
			t.Errorf("%s leads to %q, want %q", name, got, want)
		}
	}
}

// The paths that the mount of this host has are in it by that way.
func TestOtherWayOnThisHost(t *testing.T) {
	h, err := FindHierarchy()
	if err != nil {
		t.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	for _, name := range []string{h.Mount, h.Mount + "/system.slice", "/system.slice/none.scope"} {
		if at := h.OtherWay(name); at != "" {
			t.Errorf("%s leads to %s", name, at)
		}
	}
}
