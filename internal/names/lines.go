package names

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// entry is one line of passwd or group.
type entry struct {
	name    string
	id      int
	primary int      // passwd: the primary group
	members []string // group: the users for whom it is not the primary group
}

// parse reads lines of passwd (name:password:uid:gid:…) or group (name:password:gid:members). Other lines are skipped:
// "+::::" of NIS, comments, empty lines.
func parse(b []byte) []entry {
	var out []entry
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) < 4 || !queryable(f[0]) {
			continue
		}
		id, err := number(f[2])
		if err != nil {
			continue
		}
		e := entry{name: f[0], id: id}
		switch {
		case len(f) >= 7:
			if e.primary, err = number(f[3]); err != nil {
				continue
			}
		case f[3] != "":
			e.members = strings.Split(f[3], ",")
		}
		out = append(out, e)
	}
	return out
}

// number reads an id. The largest number is no id: system calls use it for "none".
func number(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = strconv.ErrRange
	}
	return int(n), err
}

// queryable reports whether getent can be queried for the name: it would read a number as an id, and a dash as an option.
func queryable(name string) bool {
	return name != "" && len(name) <= 256 && !strings.ContainsAny(name, ":,\n\x00") && !strings.ContainsAny(name[:1], "-+#") &&
		strings.Trim(name, "0123456789") != ""
}

// readFile reads a passwd or group file. A missing file has no entries.
func readFile(path, usual string) ([]entry, error) {
	b, err := boundedread.Trusted(cmp.Or(path, usual), boundedread.Record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the names of the host: %w", err)
	}
	return parse(b), nil
}
