package adoption

import (
	"errors"
	"io/fs"
	"os"
)

// Revalidate writes the record of the limits of logins again if another program has removed it: after a restart of the daemon no limit
// would be taken back, and that of before would be forgotten.
func (a *Adopter) Revalidate() (lost []string, err error) {
	a.Adoption.mu.Lock()
	defer a.Adoption.mu.Unlock()
	if len(a.perLogin.set) == 0 {
		return nil, nil
	}
	name := a.RunDir.Path(loginLimitsFile)
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return []string{name}, a.saveLoginLimits()
}
