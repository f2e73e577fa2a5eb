package names

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"
)

// question is what the directory is asked: one that hangs or fails says nothing about another.
type question struct{ kind, key string }

const (
	aboutFiles     = "files" // whether they can be read
	aboutUser      = "user"
	aboutGroup     = "group"
	aboutGroups    = "groups"    // of a user
	aboutUID       = "uid"       // the name and the groups of a number
	aboutDirectory = "directory" // whether it still knows anything
)

func uidQuestion(uid int) question { return question{aboutUID, strconv.Itoa(uid)} }

// failure is a question that the directory has not answered.
type failure struct {
	why   error
	since time.Time
	tried time.Time
	used  time.Time // when it was needed last
}

const (
	// maxFailed bounds the questions that failed: users choose the numbers.
	maxFailed = 4096
	// enoughFailed is how many questions that fail in a row show that the directory answers none.
	enoughFailed = 3
)

// recordAnswer keeps whether a question was answered. That the caller waits no longer is no failure of the directory.
func (d *Directory) recordAnswer(ctx context.Context, q question, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	queries := q.kind != aboutFiles && q.kind != aboutDirectory
	switch {
	case err == nil || errors.Is(err, ErrUnknown):
		delete(d.failed, q)
		if queries {
			clear(d.silent)
		}
		return
	case ctx.Err() != nil:
		return
	}
	now := d.now()
	f, ok := d.failed[q]
	if !ok {
		f = failure{since: now, used: now}
	}
	f.why, f.tried = err, now
	if d.failed == nil {
		d.failed, d.silent = map[question]failure{}, map[question]bool{}
	}
	if ok || len(d.failed) < maxFailed {
		d.failed[q] = f
		if queries {
			d.silent[q] = true
		}
	}
}

// Failing returns since when a question to the directory fails, and why, of the one that fails for longest; nil when all were answered.
func (d *Directory) Failing() (since time.Time, why error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var first question
	for q, f := range d.failed {
		order := cmp.Or(f.since.Compare(since), cmp.Compare(q.kind, first.kind), cmp.Compare(q.key, first.key))
		if why == nil || order < 0 {
			first, since, why = q, f.since, f.why
		}
	}
	return since, why
}

// Silent returns why the directory will not answer about a user now: it did not when it was asked about this one, or about several others
// in a row; nil: it may answer.
func (d *Directory) Silent(uid int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	own := []question{uidQuestion(uid)}
	if name, ok := d.users.name[uid]; ok {
		own = append(own, question{aboutUser, name}, question{aboutGroups, name})
	}
	for _, q := range own {
		if f, ok := d.failed[q]; ok {
			f.used = d.now()
			d.failed[q] = f
			return f.why
		}
	}
	if f, ok := d.failed[question{kind: aboutDirectory}]; ok {
		return f.why
	}
	about, why := map[string]bool{}, error(nil)
	for q := range d.silent {
		key, f := q.key, d.failed[q]
		if n, err := strconv.Atoi(key); err == nil && q.kind == aboutUID {
			key = cmp.Or(d.users.name[n], key) // The questions about one user hang together.
		}
		about[key], why = true, f.why
	}
	if len(about) < 2 {
		return nil
	}
	return why
}

// lost reports whether the directory knew nothing any more when it was asked last.
func (d *Directory) lost() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, lost := d.failed[question{kind: aboutDirectory}]
	return lost
}

// forgetFailed drops the questions that are not needed any more.
func (d *Directory) forgetFailed(needed map[question]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q, f := range d.failed {
		drop := false
		switch q.kind {
		case aboutUser, aboutGroup:
			drop = !needed[q]
		case aboutGroups:
			_, used := d.groupsOf[q.key]
			drop = !used
		case aboutUID:
			drop = d.now().Sub(f.used) > forgetGroups
		}
		if drop {
			delete(d.failed, q)
			delete(d.silent, q)
		}
	}
}

// failedUIDs returns the numbers about which the directory did not answer.
func (d *Directory) failedUIDs() map[int]time.Time {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := map[int]time.Time{}
	for q, f := range d.failed {
		if uid, err := strconv.Atoi(q.key); err == nil && q.kind == aboutUID {
			out[uid] = f.tried
		}
	}
	return out
}

// triedLocked returns when a question failed last; zero: it was answered, or never asked. mu is held.
func (d *Directory) triedLocked(q question) time.Time { return d.failed[q].tried }
