package ledger

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// String returns a point in the form that ParsePoint reads: NUMBER:SHA256.
func (m Point) String() string { return fmt.Sprintf("%d:%s", m.Number, m.Hash) }

// ParsePoint reads NUMBER:SHA256.
func ParsePoint(s string) (Point, error) {
	number, hash, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(number, 10, 64)
	sum, bad := hex.DecodeString(hash)
	if !ok || err != nil || n == 0 || bad != nil || len(sum) != 32 {
		return Point{}, fmt.Errorf("cannot use the anchor %q: it is NUMBER:SHA256, as in the journal", s)
	}
	return Point{Number: n, Hash: hex.EncodeToString(sum)}, nil
}
