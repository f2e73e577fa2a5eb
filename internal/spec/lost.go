package spec

import "strings"

// Lost gives the changes from base to current that next does not have, as lines of a diff: "+ " and a line that current has
// and next has not, "- " and a line that current removed and next has again. The texts are those of Encode.
func Lost(base, current, next string) (out []string) {
	was, is, will := lines(base), lines(current), lines(next)
	removed := map[int]bool{}            // lines of current that next lacks
	returned := map[int]map[string]int{} // what next adds before a line of current
	for _, e := range script(is, will) {
		switch e.op {
		case '-':
			removed[e.i] = true
		case '+':
			if returned[e.i] == nil {
				returned[e.i] = map[string]int{}
			}
			returned[e.i][will[e.j]]++
		}
	}
	add := func(sign, line string) { out = append(out, sign+strings.TrimRight(line, "\n")) }
	for _, e := range script(was, is) {
		switch {
		case e.op == '+' && removed[e.j]:
			add("+ ", is[e.j])
		case e.op == '-' && returns(returned, e.j, was[e.i], len(is)):
			add("- ", was[e.i])
		}
	}
	return out
}

// nearby is how many lines away an equal line counts as the same one.
const nearby = 200

// returns reports whether next adds this line again, and counts it: near the place where it was, because two scripts need not
// place equal lines in the same way.
func returns(returned map[int]map[string]int, at int, line string, n int) bool {
	for d := range min(n, nearby) + 1 {
		for _, i := range []int{at - d, at + d} {
			if returned[i][line] > 0 {
				returned[i][line]--
				return true
			}
		}
	}
	return false
}
