package procfs

import (
	"math"
	"strconv"
)

// AuditLogin is the login of a process as the kernel's audit records it: of the user who logged in, whatever the process became by
// su or sudo. Both are nil where it is not set, as in services, and on kernels without it (CONFIG_AUDIT).
type AuditLogin struct {
	UID     *uint32
	Session *uint32
}

// AuditLoginOf reads the login of a process. ErrNoProcess when there is no such process, or no such file.
func AuditLoginOf(pid int) (a AuditLogin, err error) {
	if a.UID, err = readAuditNumber(pid, "/loginuid"); err != nil {
		return AuditLogin{}, err
	}
	a.Session, err = readAuditNumber(pid, "/sessionid")
	return a, err
}

// readAuditNumber returns nil for the value that is not set.
func readAuditNumber(pid int, name string) (*uint32, error) {
	var buf [16]byte
	n, err := readSmall(pid, name, buf[:])
	if err != nil {
		return nil, err
	}
	v, err := strconv.ParseUint(string(buf[:n]), 10, 32)
	if err != nil || v == math.MaxUint32 {
		return nil, err
	}
	return new(uint32(v)), nil
}
