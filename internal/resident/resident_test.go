package resident

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

const smaps = `00400000-00eb5000 r-xp 00000000 fe:00 10250064                           /usr/sbin/gpushared
Size:              10964 kB
Anonymous:             0 kB
Swap:                  0 kB
AnonHugePages:         0 kB
VmFlags: rd ex mr mw me
00eb5000-01977000 r--p 00ab5000 fe:00 10250064                           /usr/sbin/gpushared
Anonymous:             4 kB
Swap:                  0 kB
01977000-01980000 r--p 01577000 fe:00 10250064                           /usr/sbin/gpushared
Anonymous:             0 kB
Swap:                  0 kB
01980000-01981000 r--p 01577000 fe:00 10250064                           /usr/sbin/gpushared
Anonymous:             0 kB
Swap:                  4 kB
01981000-019f3000 rw-p 01577000 fe:00 10250064                           /usr/sbin/gpushared
Anonymous:             0 kB
Swap:                  0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 7                          /usr/sbin/gpushared (deleted)
Anonymous:             0 kB
Swap:                  0 kB
7f0000002000-7f0000003000 r--p 00000000 fe:00 8                          /other /usr/sbin/gpushared
Anonymous:             0 kB
Swap:                  0 kB
7f0000004000-7f0000005000 r-xp 00000000 fe:00 9                          /usr/lib/libc.so.6
Anonymous:             0 kB
Swap:                  0 kB
`

// What is unmapped can be read from the file again: never what was written, what the loader has changed, or another file.
func TestOnlyWhatTheFileHasIsUnmapped(t *testing.T) {
	t.Parallel()
	want := []mapping{{0x400000, 0xeb5000}, {0x1977000, 0x1980000}}
	if got := unchanged([]byte(smaps), "/usr/sbin/gpushared"); !slices.Equal(got, want) {
		t.Errorf("unmapped are %x, want %x", got, want)
	}
}

// residentKiB is what is resident of the files of this process.
func residentKiB(t *testing.T) (kib int) {
	t.Helper()
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "RssFile:"); ok {
			if _, err := fmt.Sscan(v, &kib); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kib
}

// The program continues, with less of its file resident.
func TestReleaseUnmapsTheProgram(t *testing.T) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	before := residentKiB(t)
	if err := Release(); err != nil {
		t.Fatal(err)
	}
	if after := residentKiB(t); after >= before*9/10 {
		t.Errorf("of files are resident %d KiB, and %d before", after, before)
	}
}
