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
		{"three in exactly three minutes", []int{5, 30, 185}, []int{185}},
		{"the first is more than three minutes ago", []int{5, 30, 186}, nil},
		{"two in each three minutes, and then one more", []int{0, 30, 181, 211, 362, 392, 400}, []int{400}},
		{"seen in two of the three freezes after each pause", []int{0, 1, 62, 63}, []int{62, 63}},
		{"seen in one of the three freezes after each pause", []int{0, 61, 122}, []int{122}},
		{"it goes on", []int{0, 1, 2, 3, 300, 301, 302}, []int{2, 3, 302}},
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
