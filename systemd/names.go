package systemd

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/cgroup"
)

// Unit names: <prefix>.slice, <prefix>-<tenant>.slice, <prefix>-<tenant>-<grant>.slice and <prefix>-<id>.scope. In a
// slice's name every dash means one level deeper, so dashes in the names of tenants and grants are escaped.

func sliceUnit(prefix string, n cgroup.SliceName) string {
	name := escape(prefix)
	for _, part := range []string{n.Tenant, n.Grant} {
		if part != "" {
			name += "-" + escape(part)
		}
	}
	return name + ".slice"
}

// sliceOf is the inverse of sliceUnit. ok is false for a unit that gpushare does not manage.
func sliceOf(prefix, unit string) (n cgroup.SliceName, ok bool) {
	name, ok := strings.CutSuffix(unit, ".slice")
	if !ok {
		return n, false
	}
	if name == escape(prefix) {
		return n, true
	}
	name, ok = strings.CutPrefix(name, escape(prefix)+"-")
	if !ok {
		return n, false
	}
	tenant, grant, hasGrant := strings.Cut(name, "-")
	if tenant == "" || strings.Contains(grant, "-") || hasGrant && grant == "" {
		return n, false
	}
	var err error
	if n.Tenant, err = unescape(tenant); err != nil {
		return n, false
	}
	if n.Grant, err = unescape(grant); err != nil {
		return n, false
	}
	// Of the many ways to write a name, only that of sliceUnit is the unit of gpushare.
	return n, n.Check() == nil && sliceUnit(prefix, n) == unit
}

// ownUnit reports whether a unit's name begins as those of gpushare's units.
func ownUnit(prefix, unit string) bool {
	return strings.HasPrefix(unit, escape(prefix)+"-") || strings.HasPrefix(unit, escape(prefix+"-"))
}

func scopeUnit(prefix, id string) string { return escape(prefix) + "-" + id + ".scope" }

// scopeOf is the inverse of scopeUnit.
func scopeOf(prefix, unit string) (id string, ok bool) {
	name, ok := strings.CutSuffix(unit, ".scope")
	if !ok {
		return "", false
	}
	id, ok = strings.CutPrefix(name, escape(prefix)+"-")
	return id, ok && id != ""
}

// escape encodes a string as a part of a unit name, as systemd-escape(1) does, except that slashes are escaped like other
// characters.
func escape(s string) string {
	var b strings.Builder
	for i, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == ':', c == '_', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if len(s) < i+4 || s[i+1] != 'x' {
			return "", fmt.Errorf("cannot read unit name %q: incomplete escape", s)
		}
		c, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
		if err != nil {
			return "", fmt.Errorf("cannot read unit name %q: incomplete escape", s)
		}
		b.WriteByte(byte(c))
		i += 3
	}
	return b.String(), nil
}
