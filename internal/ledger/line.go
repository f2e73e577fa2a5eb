package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
)

// A line is eight hexadecimal digits, a space and one JSON value. The digits are the CRC-32C of the value's bytes: they
// tell a torn line from a whole one, not a forged one from a true one.
const digits = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encode(entry any) ([]byte, error) {
	value, err := json.Marshal(entry)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%0*x %s\n", digits, crc32.Checksum(value, castagnoli), value), nil
}

// decode gives the value of a line without its newline; ok is false when the line is not as it was written.
func decode(line []byte) (value json.RawMessage, ok bool) {
	if len(line) < digits+2 || line[digits] != ' ' {
		return nil, false
	}
	sum, err := strconv.ParseUint(string(line[:digits]), 16, 32)
	value = line[digits+1:]
	if err != nil || uint32(sum) != crc32.Checksum(value, castagnoli) {
		return nil, false
	}
	return bytes.Clone(value), true
}
