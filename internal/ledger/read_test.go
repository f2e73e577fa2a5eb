package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Read calls each with the entries, the oldest first, until each returns false. It skips damaged lines (a kill can leave half a line) and
// counts them. A missing ledger is no error.
func Read(dir, name string, each func(json.RawMessage) bool) (skipped int, err error) {
	have, err := numbers(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot read the %s ledger: %w", name, err)
	}
	for _, n := range have {
		more, s, err := readFile(path(dir, name, n), each)
		skipped += s
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the writer may have removed it in the meantime
			return skipped, fmt.Errorf("cannot read the %s ledger: %w", name, err)
		}
		if err == nil && !more {
			break
		}
	}
	return skipped, nil
}

func readFile(path string, each func(json.RawMessage) bool) (more bool, skipped int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return false, 0, err
	}
	defer f.Close() // the file was only read
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err == nil {
			value, ok := check(line[:len(line)-1])
			if !ok {
				skipped++
			} else if !each(bytes.Clone(value)) {
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
