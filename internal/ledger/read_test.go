package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
)

// Read visits the entries, the oldest first, until visit says false. It skips lines that are not as they were written
// (a kill tears the last one) and counts them. No ledger yet is no error.
func Read(dir, name string, visit func(json.RawMessage) bool) (skipped int, err error) {
	have, err := numbers(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot read the %s ledger: %w", name, err)
	}
	for _, n := range have {
		more, s, err := readFile(path(dir, name, n), visit)
		skipped += s
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the writer may have forgotten it meanwhile
			return skipped, fmt.Errorf("cannot read the %s ledger: %w", name, err)
		}
		if err == nil && !more {
			break
		}
	}
	return skipped, nil
}

func readFile(path string, visit func(json.RawMessage) bool) (more bool, skipped int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return false, 0, err
	}
	defer f.Close() // it was only read
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err == nil {
			value, ok := decode(line[:len(line)-1])
			if !ok {
				skipped++
			} else if !visit(value) {
				return false, skipped, nil
			}
			continue
		}
		if errors.Is(err, io.EOF) {
			if len(line) > 0 {
				skipped++
			}
			return true, skipped, nil
		}
		return false, skipped, err
	}
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
