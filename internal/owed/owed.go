// Package owed keeps what users owe of their grants: how much of a grace they used, and how often their leases were ended for GPU memory.
// It belongs to the payer and is the same on each GPU: it ends with no lease, process, request, sample or daemon.
package owed

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/rename"
)

// Payer is who owes: a user with a grant.
type Payer struct {
	rename.Name
	UID int `json:"uid"`
}

// String names a payer: "vision/dev 1000".
func (p Payer) String() string { return p.Tenant + "/" + p.Grant + " " + strconv.Itoa(p.UID) }

const (
	// Returns is how many times as long as a grace was used it takes until it is whole again. A user whose program ends, or frees its
	// memory for a moment, before each grace is over would otherwise never be stopped.
	Returns = 10
	// Probation is how long after a lease was ended for its memory its payer has no grace, and waits before the next lease. Each use above
	// the limit in it begins it again.
	Probation = time.Hour
	// FirstWait and LongestWait are the times between the first end of a lease, or a later one, and the next lease. Each end doubles it.
	FirstWait, LongestWait = 5 * time.Second, 5 * time.Minute
	// most is how many payers are kept: those that owed something last.
	most = 4096
)

// Spent is how much of a grace was used at one time.
type Spent struct {
	Amount time.Duration `json:"amount,omitempty"`
	At     time.Time     `json:"at,omitzero"`
}

// left is how much of it has not returned yet.
func (s Spent) left(now time.Time) time.Duration {
	return max(0, s.Amount-max(0, now.Sub(s.At))/Returns)
}

// Account is what one payer owes.
type Account struct {
	Payer
	Free   Spent     `json:"free,omitzero"`    // of the grace to free memory
	Exit   Spent     `json:"exit,omitzero"`    // of the grace between SIGTERM and SIGKILL
	Ended  int       `json:"ended,omitempty"`  // how many leases were ended for their memory, each in the Probation of the one before
	LastAt time.Time `json:"last_at,omitzero"` // the last of them
	// AboveAt is when Probation began: at that end, or when the payer was above its limit after it.
	AboveAt time.Time `json:"above_at,omitzero"`
}

// onProbation reports whether a lease was ended lately. A clock that was set back by more than Probation ends it.
func (a *Account) onProbation(now time.Time) bool {
	return a.Ended > 0 && now.Sub(a.AboveAt).Abs() < Probation
}

// spent is what of a grace is used now. While its payer is on probation nothing returns.
func (a *Account) spent(s Spent, now time.Time) time.Duration {
	if a.onProbation(now) {
		return s.Amount
	}
	return s.left(now)
}

// nothing reports whether it owes nothing any more.
func (a *Account) nothing(now time.Time) bool {
	return !a.onProbation(now) && a.Free.left(now) == 0 && a.Exit.left(now) == 0
}

// Accounts keeps the accounts of all payers. The zero value is empty; it is safe for concurrent use.
type Accounts struct {
	mu       locks.Mutex[locks.Leaf] // guards all fields
	accounts map[Payer]*Account
}

// Free is what a payer has used of a grace to free memory: all of it within Probation of the end of a lease.
func (b *Accounts) Free(p Payer, grace time.Duration, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[p]
	switch {
	case a == nil:
		return 0
	case a.onProbation(now):
		return grace
	}
	return min(a.Free.left(now), grace)
}

// Exit is what a payer has used of a grace between SIGTERM and SIGKILL.
func (b *Accounts) Exit(p Payer, grace time.Duration, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[p]; a != nil {
		return min(a.spent(a.Exit, now), grace)
	}
	return 0
}

// SpendFree records that a payer used some of its grace to free memory.
func (b *Accounts) SpendFree(p Payer, used, grace time.Duration, now time.Time) {
	b.change(p, now, func(a *Account) { a.Free = Spent{min(grace, a.spent(a.Free, now)+used), now} })
}

// SpendExit records that a payer used some of its grace between SIGTERM and SIGKILL.
func (b *Accounts) SpendExit(p Payer, used, grace time.Duration, now time.Time) {
	b.change(p, now, func(a *Account) { a.Exit = Spent{min(grace, a.spent(a.Exit, now)+used), now} })
}

// Above records that a payer uses more than its limit. Its probation, if it has one, begins again.
func (b *Accounts) Above(p Payer, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[p]; a != nil && a.onProbation(now) {
		a.AboveAt = now
	}
}

// End records that a lease of a payer was ended for its memory.
func (b *Accounts) End(p Payer, now time.Time) {
	b.change(p, now, func(a *Account) {
		if !a.onProbation(now) {
			a.Ended = 0
		}
		a.Ended, a.LastAt, a.AboveAt = a.Ended+1, now, now
	})
}

// change changes the account of a payer, which owes something afterwards.
func (b *Accounts) change(p Payer, now time.Time, f func(a *Account)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[p]
	if a == nil {
		if b.accounts == nil {
			b.accounts = map[Payer]*Account{}
		}
		b.dropLocked(now)
		a = &Account{Payer: p}
		b.accounts[p] = a
	}
	f(a)
}

// dropLocked makes room in a full table: it drops those that owe nothing, and of the others those on which nothing happened for longest.
func (b *Accounts) dropLocked(now time.Time) {
	if len(b.accounts) < most {
		return
	}
	for p, a := range b.accounts {
		if a.nothing(now) {
			delete(b.accounts, p)
		}
	}
	all := b.listLocked()
	slices.SortFunc(all, func(x, y Account) int { return x.lastAt().Compare(y.lastAt()) })
	for _, a := range all[:max(0, len(all)-most*3/4)] {
		delete(b.accounts, a.Payer)
	}
}

func (a *Account) lastAt() time.Time {
	last := a.AboveAt
	for _, t := range []time.Time{a.Free.At, a.Exit.At} {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// Waits is until when the next lease of a payer waits, and after how many leases that were ended for their memory. Zero: it does not wait.
func (b *Accounts) Waits(p Payer, now time.Time) (until time.Time, ended int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[p]
	if a == nil || !a.onProbation(now) {
		return time.Time{}, 0
	}
	wait := LongestWait
	if n := a.Ended - 1; n < 16 {
		wait = min(FirstWait<<n, LongestWait)
	}
	// A clock that was set back makes no user wait longer.
	if until = a.LastAt.Add(wait); !now.Before(until) || until.Sub(now) > wait {
		return time.Time{}, 0
	}
	return until, a.Ended
}

// Rename gives accounts the names that grants have now.
func (b *Accounts) Rename(list rename.List) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[Payer]*Account, len(b.accounts))
	for _, a := range b.accounts {
		a.Name = list.Now(a.Name)
		out[a.Payer] = a
	}
	b.accounts = out
}

// List are the accounts of those that owe something, to be kept over a restart.
func (b *Accounts) List(now time.Time) []Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(b.listLocked(), func(a Account) bool { return a.nothing(now) })
}

func (b *Accounts) listLocked() []Account {
	out := make([]Account, 0, len(b.accounts))
	for _, a := range b.accounts {
		out = append(out, *a)
	}
	slices.SortFunc(out, func(x, y Account) int {
		return cmp.Or(cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Grant, y.Grant), cmp.Compare(x.UID, y.UID))
	})
	return out
}

// Restore sets what List returned.
func (b *Accounts) Restore(list []Account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accounts = make(map[Payer]*Account, len(list))
	for i := range list[:min(len(list), most)] {
		a := list[i]
		b.accounts[a.Payer] = &a
	}
}
