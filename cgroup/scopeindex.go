package cgroup

import (
	"bytes"
	"slices"
	"sync"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// ScopeIndex finds the scope of a pid by its cgroup. The zero value is empty and ready. It is safe for concurrent use.
type ScopeIndex struct {
	mu    sync.RWMutex
	ids   map[string]string   // by cgroup path; guarded by mu
	paths map[string][]string // by id; guarded by mu
}

// Register makes all processes in the cgroups and below them members of the scope.
func (x *ScopeIndex) Register(id string, cgs ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ids == nil {
		x.ids, x.paths = map[string]string{}, map[string][]string{}
	}
	x.forgetLocked(id)
	for _, cg := range cgs {
		if other, ok := x.ids[cg]; ok {
			x.withoutLocked(other, cg) // A scope that has ended without notice had this cgroup before.
		}
		x.ids[cg] = id
	}
	x.paths[id] = cgs
}

// withoutLocked takes one of its cgroups from a scope.
func (x *ScopeIndex) withoutLocked(id, cg string) {
	left := slices.DeleteFunc(slices.Clone(x.paths[id]), func(p string) bool { return p == cg })
	if x.paths[id] = left; len(left) == 0 {
		delete(x.paths, id)
	}
}

// Forget undoes Register.
func (x *ScopeIndex) Forget(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forgetLocked(id)
}

func (x *ScopeIndex) forgetLocked(id string) {
	for _, cg := range x.paths[id] {
		if x.ids[cg] == id {
			delete(x.ids, cg)
		}
	}
	delete(x.paths, id)
}

// Path is the cgroup registered for the scope, of several the first.
func (x *ScopeIndex) Path(id string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if p := x.paths[id]; len(p) > 0 {
		return p[0], true
	}
	return "", false
}

// IDs lists the registered scopes, in no order.
func (x *ScopeIndex) IDs() []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ids := make([]string, 0, len(x.paths))
	for id := range x.paths {
		ids = append(ids, id)
	}
	return ids
}

// ScopeOf returns the scope of the process. It costs one read of /proc and no allocation.
func (x *ScopeIndex) ScopeOf(pid int) (string, bool) {
	var buf [4096]byte
	cg, err := procfs.CgroupBytes(pid, buf[:])
	if err != nil {
		return "", false
	}
	return x.lookup(cg)
}

// lookup finds the longest registered path that the cgroup is or is below.
func (x *ScopeIndex) lookup(cg []byte) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for len(cg) > 1 {
		if id, ok := x.ids[string(cg)]; ok {
			return id, true
		}
		cg = cg[:max(bytes.LastIndexByte(cg, '/'), 0)]
	}
	return "", false
}
