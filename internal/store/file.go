package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Format is the format of the files. It changes only when an older version could not read the new one. 2 is the first format
// that later versions must read.
const Format = 2

// ErrNewerFormat: a newer version wrote the file. Nothing may be changed until that version runs again.
var ErrNewerFormat = errors.New("it was written by a newer version of gpushared")

// ErrOlderFormat: a build from before the first release wrote the file. This build does not convert it, and nothing may be
// changed.
var ErrOlderFormat = errors.New("it was written by an earlier build of gpushared, and this build does not convert it")

// errCorrupt: the bytes are not those that were written.
var errCorrupt = errors.New("it is damaged")

// header is the first line of a file. Every field is compared with the bytes that follow, so that a flipped bit in the
// header is found as well. The epoch is compared as text: a newer version may know more fields of it.
type header struct {
	Format     int             `json:"format"`
	Generation uint64          `json:"generation,omitempty"`
	Epoch      json.RawMessage `json:"epoch,omitempty"`
	SHA256     string          `json:"sha256"`
}

// body is what follows the header. It repeats the format: a flipped bit in the header must not look like a newer version.
type body struct {
	Format int `json:"format"`
	State
	older
}

// marshal returns the bytes of a file.
func marshal(s *State) ([]byte, error) {
	b, err := json.Marshal(body{Format: Format, State: *s, older: olderOf(s.Closures)})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the state: %w", err)
	}
	b = append(b, '\n')
	epoch, err := json.Marshal(s.Epoch)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the state: %w", err)
	}
	return seal(header{Format: Format, Generation: s.generation(), Epoch: epoch}, b)
}

// seal puts a header with the checksum before the content of a file.
func seal(h header, content []byte) ([]byte, error) {
	line, err := h.line(content)
	if err != nil {
		return nil, err
	}
	return slices.Concat(line, content), nil
}

// line is the header of a file with this content, which may be in parts.
func (h header) line(content ...[]byte) ([]byte, error) {
	h.SHA256 = checksum(content...)
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the header: %w", err)
	}
	return append(line, '\n'), nil
}

// unseal returns the content of a file if the checksum is right. The error wraps errCorrupt.
func unseal(file []byte) (header, []byte, error) {
	line, content, ok := bytes.Cut(file, []byte("\n"))
	var h header
	if !ok || json.Unmarshal(line, &h) != nil {
		return h, nil, fmt.Errorf("%w: it has no header", errCorrupt)
	}
	if h.SHA256 != checksum(content) {
		return h, nil, fmt.Errorf("%w: the checksum differs", errCorrupt)
	}
	return h, content, nil
}

func (s *State) generation() uint64 {
	if s.Accepted == nil {
		return 0
	}
	return s.Accepted.Generation
}

func checksum(parts ...[]byte) string {
	sum := sha256.New()
	for _, b := range parts {
		sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// unmarshal reads a file. The error is or wraps errCorrupt, ErrNewerFormat or ErrOlderFormat.
func unmarshal(file []byte) (*State, error) {
	h, rest, err := unseal(file)
	if err != nil {
		return nil, err
	}
	var first struct {
		Format int             `json:"format"`
		Epoch  json.RawMessage `json:"epoch"`
	}
	if err := json.Unmarshal(rest, &first); err != nil || first.Format != h.Format || first.Format < 1 ||
		!bytes.Equal(first.Epoch, h.Epoch) {
		return nil, fmt.Errorf("%w: header and content disagree", errCorrupt)
	}
	switch {
	case first.Format > Format:
		return nil, fmt.Errorf("%w (format %d, this one reads %d)", ErrNewerFormat, first.Format, Format)
	case first.Format < Format:
		return nil, fmt.Errorf(
			"%w (format %d, this one reads %d): run 'gpushare release' of that build, then move %s and %s to another directory",
			ErrOlderFormat, first.Format, Format, current, previous,
		)
	}
	var b body
	if err := json.Unmarshal(rest, &b); err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if h.Generation != b.generation() {
		return nil, fmt.Errorf("%w: header and content disagree", errCorrupt)
	}
	if len(b.Closures) == 0 { // There are none, or an older version wrote the file.
		b.Closures = b.closures()
	}
	return &b.State, nil
}
