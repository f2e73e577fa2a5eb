//go:build lockcheck

package locks

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// locker is a mutex of any level.
type locker interface {
	sync.Locker
	TryLock() bool
}

// all returns one mutex of each level, in order.
func all() []locker {
	return []locker{
		new(Mutex[Planning]),
		new(Mutex[Apply]),
		new(Mutex[Correction]),
		new(Mutex[Adoption]),
		new(Mutex[Attaching]),
		new(Mutex[Watchers]),
		new(Mutex[UnknownLeases]),
		new(Mutex[EscapeScan]),
		new(Mutex[Rendering]),
		new(Mutex[IdentityRefresh]),
		new(Mutex[Observer]),
		new(Mutex[Logins]),
		new(Mutex[CDI]),
		new(Mutex[Health]),
		new(Mutex[MPSFaults]),
		new(Mutex[TableSave]),
		new(Mutex[Table]),
		new(Mutex[Shares]),
		new(Mutex[Progress]),
		new(Mutex[Store]),
		new(Mutex[EndedFiles]),
		new(Mutex[Leaf]),
		new(Mutex[MPSPeers]),
		new(Mutex[MPSDaemon]),
		new(Mutex[MPSAccess]),
		new(Mutex[HostFiles]),
		new(Mutex[AdapterLeaf]),
	}
}

// refused returns the message with which locking would have ended the process; empty when it would not.
func refused(lock func()) (why string) {
	end := broken
	broken = func(why string) { panic(why) }
	defer func() {
		broken = end
		if p := recover(); p != nil {
			why = fmt.Sprint(p)
		}
	}()
	lock()
	return ""
}

func TestLocksGoThroughTheOrder(t *testing.T) {
	locks := all()
	if len(locks) != len(Order) {
		t.Fatalf("%d locks are tested, and %d have a level", len(locks), len(Order))
	}
	for i, l := range locks {
		if why := refused(l.Lock); why != "" {
			t.Fatalf("%s after all above it: %s", nameOf(Order[i].Kind), why)
		}
	}
	for _, l := range locks { // The order of unlocking does not matter.
		l.Unlock()
	}
}

func TestEveryOtherOrderIsRefused(t *testing.T) {
	for i := range Order {
		for j := range i + 1 {
			outer, inner := all()[i], all()[j]
			for how, lock := range map[string]func(){"Lock": inner.Lock, "TryLock": func() { inner.TryLock() }} {
				outer.Lock()
				why := refused(lock)
				outer.Unlock()
				if !strings.Contains(why, nameOf(Order[j].Kind)+" is taken while") || strings.Count(why, "checked_test.go") < 2 {
					t.Errorf("%s of %s under %s: %q does not name both", how, nameOf(Order[j].Kind), nameOf(Order[i].Kind), why)
				}
			}
		}
	}
}

func TestLocksOfAnotherGoroutineDoNotCount(t *testing.T) {
	var leaf Mutex[Leaf]
	var table Mutex[Table]
	leaf.Lock()
	why := make(chan string)
	go func() { why <- refused(table.Lock) }()
	if why := <-why; why != "" {
		t.Error(why)
	}
	table.Unlock() // The other goroutine has ended without unlocking it.
	leaf.Unlock()
	if len(held) != 0 {
		t.Errorf("%d goroutines still hold a lock", len(held))
	}
}

func TestTryLockOfALockedMutex(t *testing.T) {
	var table Mutex[Table]
	table.Lock()
	got := make(chan bool)
	go func() { got <- table.TryLock() }()
	if <-got {
		t.Error("it was locked twice")
	}
	table.Unlock()
	if !table.TryLock() {
		t.Error("it is unlocked, and cannot be locked")
	}
	table.Unlock()
}
