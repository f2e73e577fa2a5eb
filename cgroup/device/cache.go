package device

import (
	"sync"

	"github.com/cilium/ebpf"
)

// cache are the programs that were read, by number: the kernel gives a number anew only after 2³¹ others
// (bpf_prog_alloc_id). A program keeps its name and the list that it was loaded with, and a frozen list never changes, so
// that one reading of each is as good as many: a node of a hundred slices with a hundred devices each costs some ten
// thousand calls to read.
type cache struct {
	mu       sync.Mutex // guards known
	programs map[ebpf.ProgramID]cachedProgram
}

// cachedProgram is one of them: a wall with its rules, or somebody else's.
type cachedProgram struct {
	isRules bool
	rules   []Rule
}

// maxCached is how many are kept. Leases have walls of their own, which come and go.
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
		clear(r.programs) // Those that live are read once more.
	}
	r.programs[id] = cachedProgram{isRules, rules}
}
