package names

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// refreshFor is for how long one Refresh queries.
const refreshFor = 10 * time.Second

// batch is what one call of getent can ask for.
type batch struct {
	at       time.Time // when any of that was queried last, the longest ago
	database string    // passwd or group; empty: keys has one user, whose groups are queried
	kind     string    // of the questions
	keys     []string
}

// round is one Refresh.
type round struct {
	d      *Directory
	ctx    context.Context
	until  time.Time
	failed int   // questions in a row
	err    error // the first one
	names  bool  // a name was not answered

	removed map[string]bool // what the directory knew before and does not know now
	record  []func()        // records that
	knows   bool            // it knows anything that the files do not have
}

// errKnowsNone: a module of the name service that reaches no server may say of each name that there is none (getent exits with 2).
func errKnowsNone(n int) error {
	return fmt.Errorf("getent knows none of %d users and groups that it knew before", n)
}

// batches returns what to query, with what was queried longest ago first.
func (d *Directory) batches(users, groups []string, pending []int, all bool) []batch {
	out := slices.Concat(d.due(&d.users, "passwd", aboutUser, users, all), d.due(&d.groups, "group", aboutGroup, groups, all))
	for part := range slices.Chunk(pending, namesPerCall) {
		b := batch{database: "passwd", kind: aboutUID}
		for _, uid := range part {
			b.keys = append(b.keys, strconv.Itoa(uid))
		}
		out = append(out, b)
	}
	for uid, tried := range d.failedUIDs() {
		out = append(out, batch{at: tried, kind: aboutUID, keys: []string{strconv.Itoa(uid)}})
	}
	out = append(out, d.dueGroups(all)...)
	slices.SortStableFunc(out, func(a, b batch) int { return a.at.Compare(b.at) })
	return out
}

// due picks the names to query. One that failed is queried alone, because one that hangs gives no answer about the others.
func (d *Directory) due(t *table, database, kind string, names []string, all bool) []batch {
	d.mu.RLock()
	defer d.mu.RUnlock()
	type due struct {
		name string
		at   time.Time
	}
	var together []due
	var out []batch
	seen := map[string]bool{}
	for _, name := range names {
		if !queryable(name) || seen[name] {
			continue
		}
		seen[name] = true
		a, ok := t.answered[name]
		if tried := d.triedLocked(question{kind, name}); !tried.IsZero() {
			out = append(out, batch{tried, database, kind, []string{name}})
		} else if all || !ok || a.id < 0 || d.now().Sub(a.at) > freshFor {
			together = append(together, due{name, a.at})
		}
	}
	slices.SortStableFunc(together, func(a, b due) int { return a.at.Compare(b.at) })
	for part := range slices.Chunk(together, namesPerCall) {
		b := batch{at: part[0].at, database: database, kind: kind}
		for _, x := range part {
			b.keys = append(b.keys, x.name)
		}
		out = append(out, b)
	}
	return out
}

// dueGroups picks the users whose groups to query, and drops those that were not needed for long.
func (d *Directory) dueGroups(all bool) []batch {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []batch
	for user, a := range d.groupsOf {
		tried := d.triedLocked(question{aboutGroups, user})
		switch {
		case d.now().Sub(a.used) > forgetGroups:
			delete(d.groupsOf, user)
		case queryable(user) && (all || !tried.IsZero() || d.now().Sub(a.at) > freshFor):
			if a.at.After(tried) {
				tried = a.at
			}
			out = append(out, batch{at: tried, kind: aboutGroups, keys: []string{user}})
		}
	}
	slices.SortFunc(out, func(a, b batch) int { return cmp.Compare(a.keys[0], b.keys[0]) })
	return out
}

// query queries until the time is over or the directory answers nothing any more.
func (r *round) query(all []batch) {
	for i := range all {
		b := &all[i]
		switch {
		case r.over():
			r.names = r.names || b.kind == aboutUser || b.kind == aboutGroup
		case b.database != "":
			r.queryTogether(b)
		case b.kind == aboutUID:
			uid, _ := strconv.Atoi(b.keys[0])
			r.question(question{aboutUID, b.keys[0]}, func() error { return r.d.confirm(r.ctx, uid) })
		default:
			r.question(question{aboutGroups, b.keys[0]}, func() error { return r.groups(b.keys[0]) })
		}
	}
	r.err = cmp.Or(r.err, r.ctx.Err())
}

// over reports whether to stop. That the time is over is no failure.
func (r *round) over() bool {
	return r.ctx.Err() != nil || r.failed >= enoughFailed || !time.Now().Before(r.until)
}

// question queries one, and reports whether it was answered.
func (r *round) question(q question, query func() error) bool {
	err := r.d.exclusively(r.ctx, query)
	r.d.recordAnswer(r.ctx, q, err)
	if err != nil {
		r.failed++
		r.err = cmp.Or(r.err, err)
		r.names = r.names || q.kind == aboutUser || q.kind == aboutGroup
		return false
	}
	r.failed = 0
	return true
}

// queryTogether queries many names at once, and each name without an answer alone: a directory may answer with another
// spelling ("alice" for "Alice"), and only then it is known for which name. So is which of them has no answer.
func (r *round) queryTogether(b *batch) {
	var found []entry
	together := len(b.keys) > 1 && r.d.exclusively(r.ctx, func() (err error) {
		found, err = r.d.lookup(r.ctx, b.database, b.keys)
		return err
	}) == nil
	for _, key := range b.keys {
		if together && r.keep(b, key, found, false) {
			r.d.recordAnswer(r.ctx, question{b.kind, key}, nil)
			continue
		}
		if r.over() {
			r.names = r.names || b.kind != aboutUID
			continue
		}
		var alone []entry
		if r.question(question{b.kind, key}, func() (err error) {
			alone, err = r.d.lookup(r.ctx, b.database, []string{key})
			return err
		}) {
			r.keep(b, key, alone, true)
		}
	}
}

// keep records the answer about one key, and reports whether there is one.
func (r *round) keep(b *batch, key string, found []entry, alone bool) bool {
	d := r.d
	if b.kind == aboutUID {
		uid, _ := strconv.Atoi(key)
		d.recordNames([]int{uid}, found)
		r.knows = r.knows || slices.ContainsFunc(found, func(e entry) bool { return !d.inFiles(&d.users, e.name) })
		return true
	}
	id := -1
	if i := slices.IndexFunc(found, func(e entry) bool { return e.name == key }); i >= 0 {
		id = found[i].id
	} else if alone && len(found) == 1 {
		id = found[0].id
	}
	if id < 0 && !alone {
		return false
	}
	t := &d.users
	if b.kind == aboutGroup {
		t = &d.groups
	}
	r.answered(t, b.kind, key, id, func() { d.answer(t, key, id) })
	return true
}

// answered records an answer, but that the directory does not know what it knew before only at the end of the round.
func (r *round) answered(t *table, kind, name string, id int, record func()) {
	was, had := r.d.before(t, name)
	if id >= 0 || !had {
		r.knows = r.knows || id >= 0 && !r.d.inFiles(t, name)
		record()
		return
	}
	if r.removed == nil {
		r.removed = map[string]bool{}
	}
	r.removed[fmt.Sprint(kind, was)] = true
	r.record = append(r.record, record)
}

// before returns the number of a name that the directory knew and the files did not have.
func (d *Directory) before(t *table, name string) (id int, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	a, ok := t.answered[name]
	return a.id, ok && a.id >= 0 && !a.filed
}

func (d *Directory) inFiles(t *table, name string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, ok := t.id[name]
	return ok
}

// groups queries the groups of one user.
func (r *round) groups(user string) error {
	gids, err := r.d.groupsByName(r.ctx, user)
	if err != nil && !errors.Is(err, ErrUnknown) {
		return err
	}
	id := 0
	if err != nil {
		id = -1
	}
	r.answered(&r.d.users, aboutUser, user, id, func() { r.d.keepGroups(user, gids) })
	return nil
}

// finish records what is removed, and keeps what the round did not reach for the next one. That all is removed at once, except for one
// name, is taken for a directory that does not answer.
func (r *round) finish(pending []int) {
	d := r.d
	lost := question{kind: aboutDirectory}
	if len(r.removed) > 1 && !r.knows {
		err := errKnowsNone(len(r.removed))
		r.err, r.names = cmp.Or(r.err, err), true
		d.recordAnswer(r.ctx, lost, err)
	} else {
		for _, record := range r.record {
			record()
		}
		if r.err == nil || r.knows {
			d.recordAnswer(r.ctx, lost, nil)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, uid := range pending {
		_, named := d.users.name[uid]
		_, unnamed := d.unnamed[uid]
		_, failed := d.failed[uidQuestion(uid)]
		if !named && !unnamed && !failed && len(d.pending) < maxPending {
			d.pending[uid] = true
		}
	}
	if !r.names {
		d.answeredAt = d.now()
	}
}
