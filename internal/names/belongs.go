package names

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"
)

// Membership is what is known of one user in one group.
type Membership struct {
	State State     // Present: a member
	At    time.Time // when that was answered; of local files: when they were read
}

// groupAnswer is the directory's answer about the groups of a user.
type groupAnswer struct {
	gids []int // nil: the host does not know the user
	at   time.Time
	used time.Time // when it was needed last
}

const (
	// maxGroupAnswers bounds the users whose groups are kept.
	maxGroupAnswers = 4096
	// forgetGroups is when the groups of a user are not queried again without a need.
	forgetGroups = time.Hour
)

// Belongs returns whether a user is in a group. It never waits: of what is not known the next Refresh asks. A process keeps the
// groups of its start, so only this says that the user has left one.
func (d *Directory) Belongs(uid, gid int) Membership {
	d.mu.RLock()
	m, user := d.belongsLocked(uid, gid)
	d.mu.RUnlock()
	if user == "" {
		if m.State == Unknown {
			d.UserName(uid) // Its name is pending now.
		}
		return m
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.groupsOf == nil {
		d.groupsOf = map[string]groupAnswer{}
	}
	if a, ok := d.groupsOf[user]; ok || len(d.groupsOf) < maxGroupAnswers {
		a.used = d.now()
		d.groupsOf[user] = a
	}
	return m
}

// belongsLocked also returns the user whose groups decide; empty if there is none. mu is held.
func (d *Directory) belongsLocked(uid, gid int) (m Membership, user string) {
	user, ok := d.users.name[uid]
	if !ok {
		if at, none := d.unnamed[uid]; none {
			return Membership{Absent, at}, ""
		}
		return Membership{}, ""
	}
	if slices.Contains(d.filed[user], gid) { // A directory cannot take that away.
		return Membership{Present, d.filesRead}, ""
	}
	if d.Program == "" {
		if _, filed := d.users.id[user]; filed {
			return Membership{Absent, d.filesRead}, ""
		}
		return Membership{}, ""
	}
	a := d.groupsOf[user]
	switch {
	case a.at.IsZero():
		return Membership{}, user
	case slices.Contains(a.gids, gid):
		return Membership{Present, a.at}, user
	}
	return Membership{Absent, a.at}, user
}

// Confirmed returns when the directory or a local file last had a user of this name; zero: it has none.
func (d *Directory) Confirmed(user string) time.Time {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if _, ok := d.users.id[user]; ok {
		return d.filesRead
	}
	if a, ok := d.users.answered[user]; ok && a.id >= 0 {
		return a.at
	}
	return time.Time{}
}

// member is one user in one group.
type member struct{ uid, gid int }

// maxLeft bounds the users of whom it is kept that they left a group.
const maxLeft = 1024

// RecordLeft keeps that a process has a group although its user is not in it.
func (d *Directory) RecordLeft(uid, gid int) {
	m := member{uid, gid}
	d.mu.RLock()
	known := d.left[m]
	d.mu.RUnlock()
	if known {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		d.left = map[member]bool{}
	}
	if len(d.left) < maxLeft {
		d.left[m] = true
	}
}

// Left returns the users who left one of these groups and are in none of them now.
func (d *Directory) Left(gids []int) []int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var out []int
	for m := range d.left {
		in := func(gid int) bool { is, _ := d.belongsLocked(m.uid, gid); return is.State == Present }
		if slices.Contains(gids, m.gid) && !slices.Contains(out, m.uid) && !slices.ContainsFunc(gids, in) {
			out = append(out, m.uid)
		}
	}
	slices.Sort(out)
	return out
}

// Answered returns when a Refresh last had an answer about all its names; zero: none had.
func (d *Directory) Answered() time.Time {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.answeredAt
}

// Confirm asks for the name and the groups of one user unless both were answered after since. When the directory does not
// answer, what was known is kept, and the error is returned.
func (d *Directory) Confirm(ctx context.Context, uid int, since time.Time) error {
	if d.confirmedSince(uid, since) {
		return nil
	}
	if err := d.requests.acquire(ctx); err != nil {
		return err
	}
	defer d.requests.release()
	if d.confirmedSince(uid, since) {
		return nil // Another call has asked meanwhile.
	}
	err := d.confirm(ctx, uid)
	d.recordAnswer(ctx, uidQuestion(uid), err)
	return err
}

func (d *Directory) confirm(ctx context.Context, uid int) error {
	if err := d.readFiles(); err != nil {
		return err
	}
	if d.Program == "" {
		return nil
	}
	found, err := d.lookup(ctx, "passwd", []string{strconv.Itoa(uid)})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(found, func(e entry) bool { return e.id == uid })
	if i < 0 {
		return d.confirmRemoved(ctx, uid)
	}
	d.recordNames([]int{uid}, found)
	if err := d.confirmNames(ctx, uid, found[i].name); err != nil {
		return err
	}
	user := found[i]
	user.name = d.UserName(uid) // The spelling of the spec, by which the groups are kept.
	gids, err := d.groupsOfEntry(ctx, &user)
	if err != nil && !errors.Is(err, ErrUnknown) {
		return err
	}
	d.keepGroups(user.name, gids)
	return nil
}

// confirmNames asks for the other names of a number: the spec may have another spelling than the directory answers for the number, and
// several accounts may share it.
func (d *Directory) confirmNames(ctx context.Context, uid int, answered string) error {
	for _, name := range d.namesOf(uid) {
		if name == answered {
			continue
		}
		found, err := d.lookup(ctx, "passwd", []string{name})
		if err != nil {
			return err
		}
		id := -1
		if len(found) == 1 {
			id = found[0].id
		}
		d.answer(&d.users, name, id)
	}
	return nil
}

// confirmRemoved records that the directory has no user of this number, unless it knows no other user any more either.
func (d *Directory) confirmRemoved(ctx context.Context, uid int) error {
	were := d.namesOf(uid)
	if others := d.others(uid); len(others) > 0 &&
		slices.ContainsFunc(were, func(name string) bool { _, knew := d.before(&d.users, name); return knew }) {
		found, err := d.lookup(ctx, "passwd", others)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return errKnowsNone(len(others) + 1)
		}
	}
	d.recordNames([]int{uid}, nil)
	for _, name := range were {
		d.answer(&d.users, name, -1)
	}
	return nil
}

// others returns some users that the directory knew last, except for those of one number.
func (d *Directory) others(uid int) []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var out []string
	for name, a := range d.users.answered {
		if a.id >= 0 && a.id != uid && !a.filed {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(d.users.answered[b].at.Compare(d.users.answered[a].at), cmp.Compare(a, b))
	})
	return out[:min(len(out), 3)]
}

// namesOf returns the names of a number that the directory has answered, and the one that is shown.
func (d *Directory) namesOf(uid int) []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var out []string
	for name, a := range d.users.answered {
		if a.id == uid {
			out = append(out, name)
		}
	}
	if name, ok := d.users.name[uid]; ok && !slices.Contains(out, name) {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// confirmedSince reports whether all that is known of a user was answered after since.
func (d *Directory) confirmedSince(uid int, since time.Time) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	user, ok := d.users.name[uid]
	if !ok {
		at, none := d.unnamed[uid]
		return none && at.After(since)
	}
	if d.Program == "" {
		return d.filesRead.After(since)
	}
	at := d.filesRead
	if _, filed := d.users.id[user]; !filed {
		at = d.users.answered[user].at
	}
	return at.After(since) && d.groupsOf[user].at.After(since)
}

func (d *Directory) keepGroups(user string, gids []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.groupsOf == nil {
		d.groupsOf = map[string]groupAnswer{}
	}
	a := d.groupsOf[user]
	for _, gid := range a.gids {
		if uid, ok := d.numberLocked(user); ok && !slices.Contains(gids, gid) && len(d.left) < maxLeft {
			if d.left == nil {
				d.left = map[member]bool{}
			}
			d.left[member{uid, gid}] = true
		}
	}
	a.gids, a.at = gids, d.now()
	if a.used.IsZero() {
		a.used = a.at
	}
	if _, ok := d.groupsOf[user]; ok || len(d.groupsOf) < maxGroupAnswers {
		d.groupsOf[user] = a
	}
}

// numberLocked returns the number of a user. mu is held.
func (d *Directory) numberLocked(user string) (int, bool) {
	if a, ok := d.users.answered[user]; ok && a.id >= 0 {
		return a.id, true
	}
	id, ok := d.users.id[user]
	return id, ok
}
