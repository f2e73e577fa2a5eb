package launch

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// unsetLogin is how the kernel writes an audit login uid that is not set.
const unsetLogin = 1<<32 - 1

// loginOf is the audit login uid of a process, unsetLogin where none is set; nil where the kernel has none.
func loginOf(pid int) *uint32 {
	a, err := procfs.AuditLoginOf(pid)
	if err != nil {
		return nil
	}
	if a.UID == nil {
		return new(uint32(unsetLogin))
	}
	return a.UID
}

// keepLogin takes the audit login uid of the caller, so that the kernel's audit names the user who logged in for what the program
// does. Every process may set it once (audit_set_loginuid in the kernel's auditsc.c); a process of a service has none before, and so has
// this one. A daemon that was started from a login has that of its administrator: then it needs CAP_AUDIT_CONTROL and a kernel that
// does not keep it fixed. The session of the audit cannot be passed on: the kernel gives a new one. The caller has locked its
// thread, because the uid is of a thread, and this one executes the program. It returns what is to be said when it cannot.
func (o *Credentials) keepLogin() (warning string) {
	const file = "/proc/thread-self/loginuid"
	if o.Login == nil {
		return ""
	}
	want := strconv.FormatUint(uint64(*o.Login), 10)
	text, err := boundedread.Trusted(file, boundedread.Value) // of this process
	own := strings.TrimSpace(string(text))
	if err == nil && own != want {
		err = os.WriteFile(file, []byte(want), 0)
	}
	if err == nil {
		return ""
	}
	return fmt.Sprintf(
		"the audit login uid of the command is %s, that of its caller is %s: %v", loginText(own), loginText(want), reason(err),
	)
}

func loginText(uid string) string {
	if uid == strconv.Itoa(unsetLogin) {
		return "not set"
	}
	return uid
}
