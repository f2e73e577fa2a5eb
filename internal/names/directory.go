package names

import (
	"strconv"
	"sync"
	"time"
)

// Directory keeps what is known of users and groups. Set the exported fields before the first use; the zero value reads
// the host's files and asks nobody. Reading is safe from any goroutine and never waits; one goroutine at a time asks.
type Directory struct {
	Program string           // getent; empty: only the files
	Passwd  string           // /etc/passwd when empty
	Group   string           // /etc/group when empty
	Timeout time.Duration    // of one call; 2 s when 0
	Now     func() time.Time // time.Now when nil

	requests requestLock     // whoever asks has it: a slow directory has one process waiting for it, not many
	stuck    <-chan struct{} // closed when a getent that could not be killed is gone; only for who has the turn

	mu      sync.RWMutex // guards what follows
	users   table
	groups  table
	unnamed map[int]time.Time // numbers that have no name, and when that was answered
	pending map[int]bool      // numbers whose name somebody wanted and that have none here
	failure error             // of the last asking
	since   time.Time         // when it began to fail
}

// table is what is known of one kind of name. Answers win over the file, which is what there is until one comes.
type table struct {
	answered map[string]answer
	file     []entry
	id       map[string]int // of the file
	name     map[int]string // of both
}

// answer is what the directory said of a name.
type answer struct {
	id int // -1: there is none
	at time.Time
}

// State tells what is known of a name.
type State int

// The states of a name.
const (
	Unknown State = iota // nobody answered yet
	Absent               // the host does not know it
	Present
)

const (
	// maxPending bounds the numbers whose names are to be found: peers may come with any.
	maxPending = 256
	// maxUnnamed bounds the numbers that are remembered to have none.
	maxUnnamed = 4096
	// freshFor is for how long an answer is not asked for again.
	freshFor = 5 * time.Minute
)

func (d *Directory) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

// UserID gives the number of a user.
func (d *Directory) UserID(name string) (int, State) { return d.get(&d.users, name) }

// GroupID gives the number of a group.
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

// UserName gives the name of a uid, or "uid 1234" while none is known: then Unnamed says that there is something to ask.
// It is for requests: it never waits. A nil directory knows nobody.
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

// UIDLabel is what stands for the name of a uid that has none.
func UIDLabel(uid int) string { return "uid " + strconv.Itoa(uid) }

// HasPending tells whether a name was wanted that the next Refresh may find.
func (d *Directory) HasPending() bool {
	if d == nil {
		return false
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.pending) > 0
}

// Failing tells since when the directory could not be asked, and why; nil when the last asking went well.
func (d *Directory) Failing() (since time.Time, why error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.since, d.failure
}

// loadLocked takes a file's entries in. mu is held.
func (t *table) loadLocked(file []entry) {
	t.file, t.id, t.name = file, make(map[string]int, len(file)), make(map[int]string, len(file))
	for _, e := range file {
		if _, ok := t.id[e.name]; !ok { // The first line of a name counts, as for the C library.
			t.id[e.name] = e.id
		}
	}
	t.nameLocked()
}

// nameLocked finds the name of each number anew. mu is held.
func (t *table) nameLocked() {
	clear(t.name)
	for name, a := range t.answered {
		if other, ok := t.name[a.id]; a.id >= 0 && (!ok || name < other) {
			t.name[a.id] = name
		}
	}
	// A number that has a line in the file is called by it: that is what every other tool says.
	for i := len(t.file) - 1; i >= 0; i-- {
		if e := &t.file[i]; t.answered[e.name].id >= 0 {
			t.name[e.id] = e.name
		}
	}
}
