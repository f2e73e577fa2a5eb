//go:build !lockcheck

package locks

import (
	"sync"
	"testing"
	"unsafe"
)

// In ordinary builds the order has no cost.
func TestMutexIsPlain(t *testing.T) {
	if is, want := unsafe.Sizeof(Mutex[Table]{}), unsafe.Sizeof(sync.Mutex{}); is != want {
		t.Errorf("a mutex has %d bytes, want %d", is, want)
	}
}
