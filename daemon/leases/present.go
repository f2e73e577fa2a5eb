package leases

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// Revalidate writes the leases, and those that ended, again if another program has removed their record: after a restart of the daemon
// they would run without shares and quotas.
func (ls *Leases) Revalidate(ctx context.Context) (lost []string, err error) {
	name := ls.RunDir.Path(leasesFile)
	if !ls.recorded.Load() {
		return nil, nil
	}
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ls.Ended.again()
	return []string{name}, ls.Table.SaveAgain(ctx)
}

// again makes the next encode return everything.
func (e *endedLeases) again() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changed, e.rewrite = true, true
}
