package account

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// latelyFile has what users used lately, for the order of the queue after the next boot. Until then it is in the record of the
// leases, which is exact.
const latelyFile = "lately.json"

// writeLately writes what users used lately. The caller has the files.
func (a *Account) writeLately() error {
	b, err := json.Marshal(a.Table.Lately())
	if err != nil {
		return fmt.Errorf("cannot write what was used lately: %w", err)
	}
	return store.RunDir(a.Dir).Write(latelyFile, b)
}

// restoreLately gives the table what the previous run wrote, unless the table knows it from the record of the leases. Without it
// the queue begins as on a new node, so it is no reason not to start. The caller has the files.
func (a *Account) restoreLately() {
	b, damage, err := store.RunDir(a.Dir).Read(latelyFile)
	var used lease.Lately
	if err == nil && damage.Err() == nil {
		err = json.Unmarshal(b, &used)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		a.Log.Warn("what was used lately is lost: the queue begins without it", "error", err)
	case damage != nil && damage.Lost:
		a.Log.Warn("what was used lately is lost: the queue begins without it", "reason", damage.Reason)
	default:
		a.Table.RestoreLately(used)
	}
}
