package ledger

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// String returns a mark in the form that ParseMark reads: NUMBER:SHA256.
func (m Mark) String() string { return fmt.Sprintf("%d:%s", m.Number, m.Hash) }

// ParseMark reads NUMBER:SHA256.
func ParseMark(s string) (Mark, error) {
	number, hash, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(number, 10, 64)
	sum, bad := hex.DecodeString(hash)
	if !ok || err != nil || n == 0 || bad != nil || len(sum) != 32 {
		return Mark{}, fmt.Errorf("cannot use the anchor %q: it is NUMBER:SHA256, as in the journal", s)
	}
	return Mark{Number: n, Hash: hex.EncodeToString(sum)}, nil
}
