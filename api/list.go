package api

import (
	"bytes"
	"encoding/json"
)

// List reads one value or a list of them; it writes one value as itself.
type List[T any] []T

// UnmarshalJSON reads either form.
func (l *List[T]) UnmarshalJSON(b []byte) error {
	if t := bytes.TrimSpace(b); len(t) > 0 && t[0] == '[' {
		var many []T
		if err := json.Unmarshal(b, &many); err != nil {
			return err
		}
		*l = many
		return nil
	}
	var one T
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*l = List[T]{one}
	return nil
}

// MarshalJSON writes one value as itself.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if len(l) == 1 {
		return json.Marshal(l[0])
	}
	return json.Marshal([]T(l))
}
