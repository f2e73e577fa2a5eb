package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Format is the format of the files that are written. It changes only when an older version could not read the new.
const Format = 1

// ErrNewerFormat says that a newer version wrote the file: nothing may be changed until that version is back.
var ErrNewerFormat = errors.New("it was written by a newer version of gpushared")

// errCorrupt says that the bytes are not those that were written.
var errCorrupt = errors.New("it is damaged")

// header is the first line of a file. All of it can be compared with the bytes that follow, so that a flipped bit in the
// header itself is found as well. The epoch is compared as text: a newer version may know more fields of it.
type header struct {
	Format     int             `json:"format"`
	Generation uint64          `json:"generation"`
	Epoch      json.RawMessage `json:"epoch"`
	SHA256     string          `json:"sha256"`
}

// body is what follows the header. It repeats the format: a flipped bit there must not pass for a newer version.
type body struct {
	Format int `json:"format"`
	State
}

// codec reads and writes files of one format, and reads those of the formats before it.
type codec struct {
	format int
	// upgrades turn the body of each older format into that of the next. There is none yet: 1 is the first format.
	upgrades map[int]func([]byte) ([]byte, error)
}

// marshal gives the bytes of a file.
func (c codec) marshal(s *State) ([]byte, error) {
	b, err := json.Marshal(body{Format: c.format, State: *s})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the state: %w", err)
	}
	b = append(b, '\n')
	epoch, err := json.Marshal(s.Epoch)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the state: %w", err)
	}
	h := header{Format: c.format, Generation: s.generation(), Epoch: epoch, SHA256: checksum(b)}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the state: %w", err)
	}
	return append(append(line, '\n'), b...), nil
}

func (s *State) generation() uint64 {
	if s.Accepted == nil {
		return 0
	}
	return s.Accepted.Generation
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// unmarshal reads a file. old is the format that it was written in. The error is errCorrupt or ErrNewerFormat, or
// wraps one of them.
func (c codec) unmarshal(file []byte) (s *State, old int, err error) {
	line, rest, ok := bytes.Cut(file, []byte("\n"))
	var h header
	if !ok || json.Unmarshal(line, &h) != nil {
		return nil, 0, fmt.Errorf("%w: it has no header", errCorrupt)
	}
	if h.SHA256 != checksum(rest) {
		return nil, 0, fmt.Errorf("%w: the checksum differs", errCorrupt)
	}
	var first struct {
		Format int             `json:"format"`
		Epoch  json.RawMessage `json:"epoch"`
	}
	if err := json.Unmarshal(rest, &first); err != nil || first.Format != h.Format || first.Format < 1 || !bytes.Equal(first.Epoch, h.Epoch) {
		return nil, 0, fmt.Errorf("%w: header and content disagree", errCorrupt)
	}
	b := body{Format: first.Format}
	if b.Format > c.format {
		return nil, b.Format, fmt.Errorf("%w (format %d, known up to %d)", ErrNewerFormat, b.Format, c.format)
	}
	old = b.Format
	content := rest
	for f := old; f < c.format; f++ {
		upgrade, ok := c.upgrades[f]
		if !ok {
			return nil, old, fmt.Errorf("%w: format %d is not known", errCorrupt, f)
		}
		if content, err = upgrade(content); err != nil {
			return nil, old, fmt.Errorf("%w: format %d does not convert: %w", errCorrupt, f, err)
		}
	}
	if err := json.Unmarshal(content, &b); err != nil {
		return nil, old, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if h.Generation != b.generation() {
		return nil, old, fmt.Errorf("%w: header and content disagree", errCorrupt)
	}
	return &b.State, old, nil
}
