package cli

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// A GPU has a note about its MIG mode only while another mode is pending.
func TestNoteOfAPendingMode(t *testing.T) {
	for _, c := range []struct {
		is   *api.MIGStatus
		want string
	}{
		{nil, ""},
		{&api.MIGStatus{}, ""},
		{&api.MIGStatus{Enabled: true, Pending: true}, ""},
		{&api.MIGStatus{Pending: true}, "MIG mode is off; on is pending"},
		{&api.MIGStatus{Enabled: true}, "MIG mode is on; off is pending"},
	} {
		if got := gpuNote(&api.GPUStatus{MIG: c.is}, nil); !strings.Contains(got, c.want) ||
			strings.Contains(got, "pending") != (c.want != "") {
			t.Errorf("%+v: the note is %q, want %q", c.is, got, c.want)
		}
	}
}
