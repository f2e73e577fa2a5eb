package names

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"
)

// refreshFor is for how long one Refresh asks.
const refreshFor = 10 * time.Second

// batch is what one call of getent can ask for.
type batch struct {
	at       time.Time // when that was asked for longest ago
	database string    // passwd or group; empty: keys has one user, whose groups are asked for
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

	gone  []func() // records the users that the directory knew before and does not know now
	knows bool     // it knows any that the files do not have
}

// batches returns what to ask for, with what was asked for longest ago first.
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

// due picks the names to query. One that failed is asked for alone, because one that hangs gives no answer about the others.
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

// ask asks until the time is over or the directory answers nothing any more.
func (r *round) ask(all []batch) {
	for i := range all {
		b := &all[i]
		switch {
		case r.over():
			r.names = r.names || b.kind == aboutUser || b.kind == aboutGroup
		case b.database != "":
			r.askTogether(b)
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

// question asks one, and reports whether it was answered.
func (r *round) question(q question, query func() error) bool {
	err := r.d.exclusively(r.ctx, query)
	r.d.settle(r.ctx, q, err)
	if err != nil {
		r.failed++
		r.err = cmp.Or(r.err, err)
		r.names = r.names || q.kind == aboutUser || q.kind == aboutGroup
		return false
	}
	r.failed = 0
	return true
}

// askTogether queries many names at once, and each name without an answer alone: a directory may answer with another
// spelling ("alice" for "Alice"), and only then it is known for which name. So is which of them has no answer.
func (r *round) askTogether(b *batch) {
	var found []entry
	together := len(b.keys) > 1 && r.d.exclusively(r.ctx, func() (err error) {
		found, err = r.d.lookup(r.ctx, b.database, b.keys)
		return err
	}) == nil
	for _, key := range b.keys {
		if together && r.keep(b, key, found, false) {
			r.d.settle(r.ctx, question{b.kind, key}, nil)
			continue
		}
		if r.over() {
			r.names = r.names || b.kind != aboutUID
			return
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
	d.answer(t, key, id)
	return true
}

// groups asks for the groups of one user.
func (r *round) groups(user string) error {
	gids, err := r.d.groupsByName(r.ctx, user)
	if err != nil && !errors.Is(err, ErrUnknown) {
		return err
	}
	r.d.keepGroups(user, gids)
	return nil
}

// finish keeps what the round did not reach for the next one.
func (r *round) finish(pending []int) {
	d := r.d
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
