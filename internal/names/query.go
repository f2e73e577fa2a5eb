package names

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// namesPerCall is how many names one call queries: its deadline is for all of them together.
const namesPerCall = 16

// requestLock is a lock whose wait ends with a context.
type requestLock struct {
	once sync.Once
	c    chan struct{}
}

func (t *requestLock) acquire(ctx context.Context) error {
	t.once.Do(func() { t.c = make(chan struct{}, 1) })
	select {
	case t.c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot query names: another query runs: %w", ctx.Err())
	}
}

func (t *requestLock) release() { <-t.c }

// Refresh reads the files again and queries the pending numbers and these names: those that are new, not found or not
// fresh, or all. What is not answered keeps its answer of before, and the first error is returned. What the time does not reach
// is queried by the next one, which begins with what was queried longest ago.
func (d *Directory) Refresh(ctx context.Context, users, groups []string, all bool) error {
	if err := d.refreshes.acquire(ctx); err != nil {
		return err
	}
	defer d.refreshes.release()
	err := d.exclusively(ctx, d.readFiles)
	d.recordAnswer(ctx, question{kind: aboutFiles}, err)
	if err != nil {
		return err
	}
	pending := d.takePending()
	if d.Program == "" {
		d.recordNames(pending, nil)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.answeredAt = d.now()
		return nil
	}
	all = all || d.lost() // Only an answer ends that: what is fresh would not be queried.
	r := &round{d: d, ctx: ctx, until: time.Now().Add(refreshFor)}
	r.query(d.batches(users, groups, pending, all))
	r.finish(pending)
	needed := map[question]bool{}
	for _, name := range users {
		needed[question{aboutUser, name}] = true
	}
	for _, name := range groups {
		needed[question{aboutGroup, name}] = true
	}
	d.forgetFailed(needed)
	return r.err
}

// exclusively queries while no other query runs.
func (d *Directory) exclusively(ctx context.Context, query func() error) error {
	if err := d.requests.acquire(ctx); err != nil {
		return err
	}
	defer d.requests.release()
	return query()
}

func (d *Directory) readFiles() error {
	users, err := readFile(d.Passwd, "/etc/passwd")
	if err != nil {
		return err
	}
	groups, err := readFile(d.Group, "/etc/group")
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	were := slices.Collect(maps.Keys(d.users.name))
	d.users.loadLocked(users)
	d.groups.loadLocked(groups)
	d.filed = groupsOfFiles(users, groups)
	d.filesRead = d.now()
	for _, uid := range were {
		if _, named := d.users.name[uid]; !named {
			d.unnameLocked(uid)
		}
	}
	return nil
}

func (d *Directory) answer(t *table, name string, id int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.answered == nil {
		t.answered = map[string]answer{}
	}
	was, had := t.answered[name]
	_, filed := t.id[name]
	t.answered[name] = answer{id, d.now(), filed}
	t.nameLocked()
	if _, named := t.name[was.id]; t == &d.users && had && was.id >= 0 && !named {
		d.unnameLocked(was.id) // A process of a removed user must not count as one whose name was never asked for.
	}
}

// unnameLocked records that a number has no name. mu is held.
func (d *Directory) unnameLocked(uid int) {
	if d.unnamed == nil || len(d.unnamed) > maxUnnamed {
		d.unnamed = map[int]time.Time{}
	}
	d.unnamed[uid] = d.now()
}

func (d *Directory) lookup(ctx context.Context, database string, keys []string) ([]entry, error) {
	b, err := d.getent(ctx, append([]string{database}, keys...)...)
	if err != nil {
		return nil, err
	}
	return parse(b), nil
}

// takePending returns the pending numbers that the files do not have, and clears them.
func (d *Directory) takePending() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []int
	for uid := range d.pending {
		_, known := d.users.name[uid]
		if _, failed := d.failed[uidQuestion(uid)]; !known && !failed { // One that failed is asked for again without this.
			out = append(out, uid)
		}
	}
	clear(d.pending)
	slices.Sort(out)
	return out
}

// recordNames records the names of numbers, and which numbers have none.
func (d *Directory) recordNames(uids []int, found []entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, uid := range uids {
		i := slices.IndexFunc(found, func(e entry) bool { return e.id == uid })
		if i < 0 {
			d.unnameLocked(uid)
			continue
		}
		if d.users.answered == nil {
			d.users.answered = map[string]answer{}
		}
		_, filed := d.users.id[found[i].name]
		d.users.answered[found[i].name] = answer{uid, d.now(), filed}
		delete(d.unnamed, uid)
	}
	d.users.nameLocked()
}

// GroupsOf queries all groups of a user, the primary one included. It may take as long as the deadline of one call.
func (d *Directory) GroupsOf(ctx context.Context, user string) ([]int, error) {
	if err := d.requests.acquire(ctx); err != nil {
		return nil, err
	}
	defer d.requests.release()
	if !queryable(user) {
		return nil, fmt.Errorf("cannot read the groups of %q: invalid user name", user)
	}
	if d.Program == "" {
		return d.groupsInFiles(user)
	}
	gids, err := d.groupsByName(ctx, user)
	if err == nil {
		d.keepGroups(user, gids)
	}
	return gids, err
}

// groupsByName queries all groups of a user. The caller has locked requests.
func (d *Directory) groupsByName(ctx context.Context, user string) ([]int, error) {
	entries, err := d.lookup(ctx, "passwd", []string{user})
	if err != nil {
		return nil, fmt.Errorf("cannot read the groups of %s: %w", user, err)
	}
	if len(entries) != 1 {
		return nil, fmt.Errorf("cannot read the groups of %s: %w", user, ErrUnknown)
	}
	entry := entries[0]
	entry.name = user // As it was asked for: a directory may have another spelling.
	return d.groupsOfEntry(ctx, &entry)
}

// groupsOfEntry queries the groups of a user that the directory has. The caller has locked requests.
func (d *Directory) groupsOfEntry(ctx context.Context, user *entry) ([]int, error) {
	b, err := d.getent(ctx, "initgroups", user.name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the groups of %s: %w", user.name, err)
	}
	// The name as it was asked for, and then numbers. A name may have spaces, and after them digits that are no group. The primary
	// group is missing; passwd has it.
	line := strings.TrimSpace(string(b))
	if line == "" {
		return nil, fmt.Errorf("cannot read the groups of %s: %w", user.name, ErrUnknown)
	}
	rest, ok := strings.CutPrefix(line, user.name)
	if !ok || rest != "" && !strings.ContainsAny(rest[:1], " \t\n") {
		return nil, fmt.Errorf("cannot read the groups of %s: getent answers about another name: %.80q", user.name, line)
	}
	out := []int{user.primary}
	for _, word := range strings.Fields(rest) {
		if gid, err := strconv.ParseUint(word, 10, 32); err == nil && !slices.Contains(out, int(gid)) {
			out = append(out, int(gid))
		}
	}
	return out, nil
}

// ErrUnknown: the host knows no such name.
var ErrUnknown = errors.New("unknown on this host")

func (d *Directory) groupsInFiles(user string) ([]int, error) {
	if err := d.readFiles(); err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	i := slices.IndexFunc(d.users.file, func(e entry) bool { return e.name == user })
	if i < 0 {
		return nil, fmt.Errorf("cannot read the groups of %s: %w", user, ErrUnknown)
	}
	return slices.Clone(d.filed[user]), nil
}

// groupsOfFiles returns the groups of each user in the local files, the primary one first.
func groupsOfFiles(users, groups []entry) map[string][]int {
	out := map[string][]int{}
	for i := range users {
		if e := &users[i]; out[e.name] == nil { // The first line of a name counts.
			out[e.name] = []int{e.primary}
		}
	}
	for i := range groups {
		for _, name := range groups[i].members {
			if !slices.Contains(out[name], groups[i].id) {
				out[name] = append(out[name], groups[i].id)
			}
		}
	}
	return out
}
