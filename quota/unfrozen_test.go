package quota

import (
	"slices"
	"testing"
	"time"
)

func TestUnfrozen(t *testing.T) {
	for _, c := range []struct {
		name string
		ran  []int // seconds
		due  []int
	}{
		{"it is always frozen", nil, nil},
		{"twice", []int{0, 1}, nil},
		{"three slices in a row, from the first second on", []int{0, 1, 2}, []int{2}},
		{"three in exactly a minute", []int{5, 30, 65}, []int{65}},
		{"the first is more than a minute ago", []int{5, 30, 66}, nil},
		{"two in each minute, and then one more", []int{0, 30, 61, 91, 122, 152, 160}, []int{160}},
		{"it goes on", []int{0, 1, 2, 3, 100, 101, 102}, []int{2, 3, 102}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var u Unfrozen
			var due []int
			for _, s := range c.ran {
				if u.Ran(time.Duration(s) * time.Second) {
					due = append(due, s)
				}
			}
			if !slices.Equal(due, c.due) {
				t.Errorf("it is due at %v s, want %v", due, c.due)
			}
		})
	}
}
