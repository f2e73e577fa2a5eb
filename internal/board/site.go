package board

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Directory has the boards of a site: files as those of testdata/gpus, which 'gpushare mig profiles --from' writes.
const Directory = "/etc/gpushare/boards"

const (
	mostFiles = 200
	mostBytes = 1 << 20 // of one file
	mostWidth = 64      // memory slices
)

// Site reads the boards of a directory, by file name, and says what is wrong with the files that it leaves out. A directory
// that is not there has no boards.
func Site(dir string) (boards []*Board, wrong []error) {
	entries, cut, err := boundedread.Entries(dir, mostFiles)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, []error{fmt.Errorf("cannot list the boards of this site: %w", err)}
	}
	if cut {
		wrong = append(wrong, fmt.Errorf("%s has more than %d files: the others are not read", dir, mostFiles))
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".yaml"); ok && !strings.HasPrefix(name, ".") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		b, err := ReadFile(filepath.Join(dir, name+".yaml"))
		if err == nil && slices.ContainsFunc(boards, func(o *Board) bool { return o.Short == b.Short }) {
			err = fmt.Errorf("cannot use the board %s: another file has the same short name %s", name, b.Short)
		}
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		boards = append(boards, b)
	}
	return boards, wrong
}

// ReadFile reads one board file and checks that a layout can be planned with it.
func ReadFile(path string) (*Board, error) {
	raw, err := boundedread.Trusted(path, mostBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the board: %w", err)
	}
	b, err := decode(strings.TrimSuffix(filepath.Base(path), ".yaml"), raw)
	if err != nil {
		return nil, err
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	return b, nil
}

// check finds what would make a plan wrong.
func (b *Board) check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("cannot use the board %s: %s", b.File, fmt.Sprintf(format, args...))
	}
	if b.Name == "" || b.Short == "" || b.Grid == 0 || b.Grid > mostWidth || len(b.Profiles) == 0 {
		return wrong("it needs name, short, profiles, and a grid of 1 to %d", mostWidth)
	}
	seen := map[uint32]bool{}
	for i := range b.Profiles {
		p := &b.Profiles[i]
		if p.Name == "" || p.Slices == 0 || p.Size == 0 || p.Max == 0 || p.MemoryMiB == 0 || len(p.Starts) == 0 {
			return wrong("profile %q needs name, slices, size, starts, max and memory_mib", p.Name)
		}
		if seen[p.ID] {
			return wrong("the id %d of %s is there twice", p.ID, p.Name)
		}
		seen[p.ID] = true
		for _, s := range p.Starts {
			if p.Size > b.Grid || s > b.Grid-p.Size {
				return wrong("%s at %d is not within the grid of %d", p.Name, s, b.Grid)
			}
		}
	}
	return nil
}
