package procfs

import (
	"bytes"
	"strings"
	"testing"
)

// A process sets its own name, and has any text in parentheses there.
func FuzzStat(f *testing.F) {
	f.Add([]byte("12 (python) S 7 1 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 10"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseStat(b)
		if err == nil && !bytes.Contains(b, []byte("("+s.Name+")")) {
			t.Errorf("the name %q of %q", s.Name, b)
		}
	})
}

// A process sets its name, its groups and its user namespace, which are all in its status.
func FuzzStatus(f *testing.F) {
	f.Add("Name:\tpython\nUmask:\t0022\nState:\tS (sleeping)\nTracerPid:\t0\nUid:\t1000\t1000\t1000\t1000\nGroups:\t4 24 \n")
	f.Fuzz(func(t *testing.T, status string) {
		ids, ok := parseUIDs(status)
		if ok && len(ids) != 4 {
			t.Errorf("%v of %q", ids, status)
		}
		for _, id := range ids {
			if id < 0 || id > 1<<32-1 {
				t.Errorf("uid %d of %q", id, status)
			}
		}
		if _, tracer := parseThread(status); tracer < 0 {
			t.Errorf("tracer %d of %q", tracer, status)
		}
	})
}

// A user with a part of the hierarchy names the cgroups in it.
func FuzzCgroup(f *testing.F) {
	f.Add([]byte("12:pids:/user.slice\n1:name=systemd:/\n0::/user.slice/user-1000.slice/session-1.scope\n"))
	f.Add([]byte("0::/../x (deleted)\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path, err := parseCgroup(bytes.Clone(b))
		if err == nil && !bytes.Contains(b, append([]byte("0::"), path...)) {
			t.Errorf("the path %q of %q", path, b)
		}
	})
}

// A process has any bytes in its command line.
func FuzzCommand(f *testing.F) {
	f.Add([]byte("/bin/sh\x00-c\x00sleep 1\x00"), false)
	f.Add([]byte("\x00\x00\x00"), true)
	f.Fuzz(func(t *testing.T, b []byte, cut bool) {
		line := joinArguments(b, cut)
		if strings.ContainsRune(line, 0) || len(line) > len(b)+4 || cut && line != "" && !strings.HasSuffix(line, " …") {
			t.Errorf("%q of %q", line, b)
		}
	})
}
