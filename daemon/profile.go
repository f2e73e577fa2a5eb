package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// ProfileHint says what helps when the daemon cannot start because its profile of AppArmor may forbid it: settings may name paths that the
// profile does not know. Empty: it is not that.
func ProfileHint(err error) string { return profileHint(err, procfs.Profile(os.Getpid())) }

func profileHint(err error, profile string) string {
	// Some libraries keep of an error of the kernel only its text.
	denied := err != nil && (errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), unix.EACCES.Error()))
	if profile == "" || !denied {
		return ""
	}
	return fmt.Sprintf("the profile %[1]s of AppArmor may forbid it ('journalctl -k --grep DENIED' shows it): "+
		"add a rule for the path to /etc/apparmor.d/local/%[1]s, then 'apparmor_parser --replace /etc/apparmor.d/%[1]s && systemctl restart gpushared'", profile)
}
