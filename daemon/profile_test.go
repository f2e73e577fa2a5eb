package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A daemon that is kept from a path of its settings says where the rule belongs.
func TestProfileHint(t *testing.T) {
	t.Parallel()
	denied := fmt.Errorf("cannot open /srv/state: %w", &fs.PathError{Op: "open", Path: "/srv/state", Err: unix.EACCES})
	for _, c := range []struct {
		err     error
		profile string
		helps   bool
	}{
		{denied, "gpushared", true},
		{errors.New("cannot serve metrics with metrics_web_config /srv/web.yaml: " + denied.Error()), "gpushared", true}, // as exporter-toolkit does
		{denied, "", false},
		{errors.New("cannot read the settings"), "gpushared", false},
		{nil, "gpushared", false},
	} {
		hint := profileHint(c.err, c.profile)
		if (hint != "") != c.helps || c.helps && !strings.Contains(hint, "/etc/apparmor.d/local/gpushared") {
			t.Errorf("%v with the profile %q: %q", c.err, c.profile, hint)
		}
	}
}
