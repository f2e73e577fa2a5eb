package ledger

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// A line is eight hexadecimal digits, a space and one JSON value. The digits are the CRC-32C of the value's bytes: they
// detect incomplete lines, not forged ones.
const digits = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encode(entry any) ([]byte, error) {
	value, err := json.Marshal(entry)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%0*x %s\n", digits, crc32.Checksum(value, castagnoli), value), nil
}
