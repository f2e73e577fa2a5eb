//go:build !lockcheck

package locks

import "sync"

// Mutex is a mutex with a level in the order. The zero value is unlocked.
type Mutex[R Ranked] struct{ sync.Mutex }
