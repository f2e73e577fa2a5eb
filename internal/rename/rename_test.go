package rename

import "testing"

// Of one spec the names change at once; over several one after the other, and back in the reverse order.
func TestNames(t *testing.T) {
	recorded := List{
		{Generation: 2, From: Name{"vision", ""}, To: Name{"imaging", ""}},
		{Generation: 2, From: Name{"vision", "train"}, To: Name{"imaging", "large"}},
		{Generation: 5, From: Name{"imaging", ""}, To: Name{"optics", ""}},
		{Generation: 5, From: Name{"speech", "dev"}, To: Name{"speech", "test"}},
		{Generation: 9, From: Name{"optics", "large"}, To: Name{"optics", "huge"}},
	}
	for _, c := range []struct {
		after    uint64
		from, to Name
	}{
		{0, Name{"vision", ""}, Name{"optics", ""}},
		{0, Name{"vision", "train"}, Name{"optics", "huge"}},
		{0, Name{"vision", "dev"}, Name{"optics", "dev"}},
		{0, Name{"speech", ""}, Name{"speech", ""}},
		{0, Name{"speech", "dev"}, Name{"speech", "test"}},
		{0, Name{"other", "train"}, Name{"other", "train"}},
		{2, Name{"imaging", "large"}, Name{"optics", "huge"}},
		{2, Name{"vision", "train"}, Name{"vision", "train"}},
		{5, Name{"optics", "large"}, Name{"optics", "huge"}},
		{9, Name{"optics", "large"}, Name{"optics", "large"}},
	} {
		list := recorded.After(c.after)
		if got := list.Now(c.from); got != c.to {
			t.Errorf("after %d %v is %v, want %v", c.after, c.from, got, c.to)
		}
		if back := list.Before(c.to); back != c.from {
			t.Errorf("after %d %v was %v, want %v", c.after, c.to, back, c.from)
		}
	}
	if n := len(recorded.In(5)); n != 2 || len(recorded.In(4)) != 0 || len(recorded.In(0)) != 0 {
		t.Errorf("generation 5 has %d renames, 4 has %d", n, len(recorded.In(4)))
	}
}

func TestOldRenamesAreDropped(t *testing.T) {
	var l List
	for g := range uint64(3 * most) {
		l = l.With(List{{Generation: g + 1}})
	}
	if len(l) != most || l[most-1].Generation != 3*most {
		t.Errorf("%d renames are kept, the last of generation %d", len(l), l[len(l)-1].Generation)
	}
}
