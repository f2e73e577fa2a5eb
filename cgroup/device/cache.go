package device

import (
	"sync"

	"github.com/cilium/ebpf"
)

// cache contains the programs that were read, by id: the kernel reuses an id only after 2³¹ others (bpf_prog_alloc_id). The
// name and the maps of a program never change, and a frozen map never changes, so one read of each program is enough.
// Without the cache, a node of a hundred slices with a hundred devices each costs about ten thousand system calls to read.
type cache struct {
	mu       sync.Mutex // guards programs
	programs map[ebpf.ProgramID]cachedProgram
}

// cachedProgram is a program with device rules, or another program.
type cachedProgram struct {
	isRules bool
	rules   []Rule
}

// maxCached bounds the cache. Every lease has a program of its own.
const maxCached = 4096

var programCache = cache{programs: map[ebpf.ProgramID]cachedProgram{}}

func (r *cache) get(id ebpf.ProgramID) (rules []Rule, isRules, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, known := r.programs[id]
	return p.rules, p.isRules, known
}

func (r *cache) put(id ebpf.ProgramID, rules []Rule, isRules bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.programs) >= maxCached {
		clear(r.programs) // attached programs are read once more
	}
	r.programs[id] = cachedProgram{isRules, rules}
}
