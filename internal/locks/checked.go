//go:build lockcheck

package locks

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// Mutex is a mutex with a level in the order. The zero value is unlocked. It ends the process when the order is violated,
// also when no goroutine would have blocked.
type Mutex[R Ranked] struct {
	mu        sync.Mutex
	goroutine uint64 // the goroutine that locked it; guarded by mu
}

// Lock locks it.
func (m *Mutex[R]) Lock() {
	var r R
	g, at := check(r)
	m.mu.Lock()
	m.goroutine = g
	push(g, acquired{r, m, at})
}

// TryLock locks it when it is unlocked.
func (m *Mutex[R]) TryLock() bool {
	var r R
	g, at := check(r)
	if !m.mu.TryLock() {
		return false
	}
	m.goroutine = g
	push(g, acquired{r, m, at})
	return true
}

// Unlock unlocks it. Another goroutine may have locked it.
func (m *Mutex[R]) Unlock() {
	pop(m.goroutine, m)
	m.mu.Unlock()
}

// acquired is one lock that a goroutine holds.
type acquired struct {
	rank Ranked
	lock any
	at   []uintptr
}

var (
	mu   sync.Mutex // guards held
	held = map[uint64][]acquired{}

	places = func() map[Ranked]int {
		all := map[Ranked]int{}
		for i, p := range Order {
			all[p.Kind] = i
		}
		return all
	}()
)

// broken is called when the order is violated. It does not panic, because a server recovers from panics in requests.
var broken = func(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(2)
}

// check calls broken when the goroutine holds a lock that is not above this one. It returns the goroutine and the call stack.
func check(r Ranked) (goroutine uint64, at []uintptr) {
	place, ok := places[r]
	if !ok {
		panic(fmt.Sprintf("locks: %T has no level in the order", r))
	}
	goroutine = current()
	pcs := make([]uintptr, 8)
	at = pcs[:runtime.Callers(3, pcs)]
	mu.Lock()
	defer mu.Unlock()
	for _, h := range held[goroutine] {
		if places[h.rank] >= place {
			broken(
				fmt.Sprintf(
					"locks: %T is taken while %T is held, against the order\ntaken at:\n%sheld since:\n%s", r, h.rank, where(at),
					where(h.at),
				),
			)
		}
	}
	return goroutine, at
}

func push(goroutine uint64, t acquired) {
	mu.Lock()
	defer mu.Unlock()
	held[goroutine] = append(held[goroutine], t)
}

func pop(goroutine uint64, lock any) {
	mu.Lock()
	defer mu.Unlock()
	all := held[goroutine]
	for i := range all {
		if all[i].lock != lock {
			continue
		}
		if all = append(all[:i], all[i+1:]...); len(all) == 0 {
			delete(held, goroutine) // The goroutine may end.
			return
		}
		held[goroutine] = all
		return
	}
	panic("locks: it is not locked")
}

// current is the number of the running goroutine. The runtime only reports it in the text of a stack.
func current() uint64 {
	buf := make([]byte, 64)
	words := bytes.Fields(buf[:runtime.Stack(buf, false)]) // "goroutine 18 [running]:"
	n, err := strconv.ParseUint(string(words[1]), 10, 64)
	if err != nil {
		panic("locks: cannot read the goroutine's number: " + err.Error())
	}
	return n
}

func where(at []uintptr) string {
	var b strings.Builder
	for frames := runtime.CallersFrames(at); ; {
		f, more := frames.Next()
		fmt.Fprintf(&b, "\t%s\n\t\t%s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return b.String()
		}
	}
}
