package closing

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/store"
)

// Cordon is the form of the API for a GPU that an administrator closed; nil: none did.
func Cordon(c *store.Closure) *api.Cordon {
	if c == nil {
		return nil
	}
	return &api.Cordon{By: c.By, Since: c.Since, Reason: c.Reason}
}
