package ledger

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
	"sync"
)

// A line is eight hexadecimal digits, a space and one JSON value. The digits are the CRC-32C of the value's bytes: they
// detect incomplete lines, not forged ones.
const digits = 8

// castagnoli is made when it is first used: the command line imports this package in every command, and making it takes longer there
// than everything else before main.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

func encode(entry any) ([]byte, error) {
	value, err := json.Marshal(entry)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%0*x %s\n", digits, crc32.Checksum(value, castagnoli()), value), nil
}

// check returns the value of a line without its newline; ok is false for a damaged line.
func check(line []byte) (value json.RawMessage, ok bool) {
	if len(line) < digits+2 || line[digits] != ' ' {
		return nil, false
	}
	sum, err := strconv.ParseUint(string(line[:digits]), 16, 32)
	value = line[digits+1:]
	if err != nil || uint32(sum) != crc32.Checksum(value, castagnoli()) {
		return nil, false
	}
	return value, true
}
