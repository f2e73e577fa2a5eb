package names

import (
	"strconv"
	"sync"
	"time"
)

// Directory keeps the known users and groups. Set the exported fields before the first use; the zero value reads the host's
// files and queries no directory. Reading is safe from any goroutine and never waits; one goroutine at a time queries.
type Directory struct {
	Program string           // getent; empty: only the files
	Passwd  string           // /etc/passwd when empty
	Group   string           // /etc/group when empty
	Timeout time.Duration    // of one call; 2 s when 0
	Now     func() time.Time // time.Now when nil

	refreshes requestLock     // held during a Refresh; taken before requests
	requests  requestLock     // held during a query: a slow directory has one process waiting for it, not many
	stuck     <-chan struct{} // closed when a getent that could not be killed has exited; guarded by requests

	mu      sync.RWMutex // guards what follows
	users   table
	groups  table
	unnamed map[int]time.Time // numbers without a name, and when that was answered
	// groupsOf is what the directory answered about the groups of users, by name.
	groupsOf   map[string]groupAnswer
	filed      map[string][]int // the groups of users in the local files
	filesRead  time.Time        // when the local files were read
	answeredAt time.Time        // when a Refresh had an answer about all its names last
	left       map[member]bool  // who is in a group no more although a process had it, or the directory said so
	pending    map[int]bool     // numbers whose name was requested and is not known
	failed     map[question]failure
	silent     map[question]bool // the questions that failed since the directory answered last
}

// table is what is known of users or of groups. An answer wins over the file.
type table struct {
	answered map[string]answer
	file     []entry
	id       map[string]int // of the file
	name     map[int]string // of both
}

// answer is the directory's answer about a name.
type answer struct {
	id    int // -1: no such name
	at    time.Time
	filed bool // the local files had the name then: that it is not answered any more says nothing about the directory
}

// State is what is known of a name.
type State int

// The states of a name.
const (
	Unknown State = iota // not answered yet
	Absent               // the host does not know it
	Present
)

const (
	// maxPending bounds the pending numbers: peers may have any number.
	maxPending = 256
	// maxUnnamed bounds the numbers that are known to have no name.
	maxUnnamed = 4096
	// freshFor is for how long an answer is not queried again.
	freshFor = time.Minute
)

func (d *Directory) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

// UserID returns the number of a user.
func (d *Directory) UserID(name string) (int, State) { return d.get(&d.users, name) }

// GroupID returns the number of a group.
func (d *Directory) GroupID(name string) (int, State) { return d.get(&d.groups, name) }

func (d *Directory) get(t *table, name string) (int, State) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if a, ok := t.answered[name]; ok {
		if a.id < 0 {
			return -1, Absent
		}
		return a.id, Present
	}
	if id, ok := t.id[name]; ok {
		return id, Present
	}
	if t.id != nil && (d.Program == "" || !queryable(name)) {
		return -1, Absent
	}
	return -1, Unknown
}

// UserName returns the name of a uid, or "uid 1234" while none is known: the number is then pending. It never waits, so
// requests can call it. A nil directory knows no names.
func (d *Directory) UserName(uid int) string {
	if d == nil {
		return UIDLabel(uid)
	}
	d.mu.RLock()
	name, ok := d.users.name[uid]
	at, none := d.unnamed[uid]
	d.mu.RUnlock()
	if ok {
		return name
	}
	if !none || d.now().Sub(at) > freshFor {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.pending == nil {
			d.pending = map[int]bool{}
		}
		if len(d.pending) < maxPending {
			d.pending[uid] = true
		}
	}
	return UIDLabel(uid)
}

// UIDLabel is the text for a uid without a name.
func UIDLabel(uid int) string { return "uid " + strconv.Itoa(uid) }

// HasPending reports whether a name was requested that the next Refresh may find.
func (d *Directory) HasPending() bool {
	if d == nil {
		return false
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.pending) > 0
}

// loadLocked loads a file's entries. mu is held.
func (t *table) loadLocked(file []entry) {
	t.file, t.id, t.name = file, make(map[string]int, len(file)), make(map[int]string, len(file))
	for _, e := range file {
		if _, ok := t.id[e.name]; !ok { // The first line of a name counts, as for the C library.
			t.id[e.name] = e.id
		}
	}
	t.nameLocked()
}

// nameLocked computes the name of each number. mu is held.
func (t *table) nameLocked() {
	clear(t.name)
	for name, a := range t.answered {
		if other, ok := t.name[a.id]; a.id >= 0 && (!ok || name < other) {
			t.name[a.id] = name
		}
	}
	// The name in the file has priority, as in every other tool.
	for i := len(t.file) - 1; i >= 0; i-- {
		if e := &t.file[i]; t.answered[e.name].id >= 0 {
			t.name[e.id] = e.name
		}
	}
}
