package status

import (
	"testing"

	"github.com/gpushare/gpushare/api"
)

func TestShareTexts(t *testing.T) {
	share := func(busy, err, due float64) *api.LeaseShare {
		return &api.LeaseShare{Busy: &busy, StdErr: &err, Due: &due}
	}
	for _, c := range []struct {
		share *api.LeaseShare
		want  string
	}{
		{&api.LeaseShare{}, ""},
		{share(9, 3, 20), "; it uses less than its share (9±3%, due 20%)"},
		{share(16, 3, 20), "; it uses about its share (16±3%, due 20%)"},
		{share(31, 5, 20), "; it uses more than its share (31±5%, due 20%)"},
	} {
		if got := ofShare(c.share); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
