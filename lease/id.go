package lease

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// Lengths of the parts of an id, which has 40 characters at most: tenant-grant-suffix.
const (
	maxTenantPart = 17
	maxGrantPart  = 15
	suffixLength  = 4
	longestSuffix = 6
)

// suffixAlphabet has no vowels, so that no word results, and no characters that are easily misread.
const suffixAlphabet = "23456789bcdfghjkmnpqrstvwxz"

// newID returns a short, readable id that matches [a-z0-9-]{1,40} and is not in use. The grant is left out if it is not
// chosen yet. Ids are unique among the leases that the table knows; the generation is unique over time.
func newID(tenant, grant string, random func(n int) int, taken func(string) bool) string {
	if random == nil {
		random = rand.IntN
	}
	var head []string
	for _, p := range []string{idPart(tenant, maxTenantPart), idPart(grant, maxGrantPart)} {
		if p != "" {
			head = append(head, p)
		}
	}
	for try := 0; ; try++ {
		// A longer suffix is used only if the short ones are exhausted, so that the search ends.
		n := min(suffixLength+try/64, longestSuffix)
		var b strings.Builder
		for range n {
			b.WriteByte(suffixAlphabet[random(len(suffixAlphabet))])
		}
		if id := strings.Join(append(head[:len(head):len(head)], b.String()), "-"); !taken(id) {
			return id
		}
	}
}

// idPart reduces a name to the characters and the length of an id part. A long name loses its middle: names of one project begin
// alike, and those of one kind end alike.
func idPart(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, s)
	s = strings.Trim(s, "-")
	if len(s) <= most {
		return s
	}
	tail := (most - 1) / 2
	return strings.TrimRight(s[:most-1-tail], "-") + "-" + strings.TrimLeft(s[len(s)-tail:], "-")
}

// maxRecentIDs is how many ids of ended leases are not used again.
const maxRecentIDs = 256

// retireIDLocked prevents that the id is used again soon.
func (t *Table) retireIDLocked(id string) {
	t.recentIDs = append(t.recentIDs, id)
	if n := len(t.recentIDs); n > maxRecentIDs {
		t.recentIDs = slices.Delete(t.recentIDs, 0, n-maxRecentIDs)
	}
}

// idInUseLocked reports whether an id is in use or was used lately.
func (t *Table) idInUseLocked(id string) bool {
	return t.leases[id] != nil || slices.Contains(t.recentIDs, id) ||
		slices.ContainsFunc(t.queue, func(k *Ticket) bool { return k.lease.ID == id })
}
