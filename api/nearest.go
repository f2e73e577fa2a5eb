package api

import "strings"

// Nearest returns the known word that is most similar to a mistyped one: at most a third of its letters differ, and whether
// they are capital does not count. ok is false if no word is that similar.
func Nearest(word string, known []string) (nearest string, ok bool) {
	if len(word) <= 64 { // distance compares no longer ones
		word = strings.ToLower(word)
	}
	best := len(word)/3 + 1
	for _, k := range known {
		if d := distance(word, strings.ToLower(k), best); d < best || (d == best && !ok) {
			best, nearest, ok = d, k, true
		}
	}
	return nearest, ok
}

// distance counts the letters to insert, delete, change or swap with their neighbour to turn a into b. It gives up
// beyond limit, so that a hostile key of a megabyte costs nothing.
func distance(a, b string, limit int) int {
	if len(a) > 64 || len(b) > 64 || len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	var rows [3][66]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
