package server

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/gpushare/gpushare/api"
)

// mostReason bounds the reason of an administrator, in bytes.
const mostReason = 500

// Reason returns the reason of an administrator as it is recorded, or the refusal of it. action is what was requested.
func Reason(action, text string) (string, error) {
	text = strings.TrimSpace(text)
	switch {
	case len(text) > mostReason:
		return "", &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot %s: the reason has %d bytes, and at most %d are kept", action, len(text), mostReason),
		}
	case strings.ContainsFunc(text, unicode.IsControl):
		return "", &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot %s: the reason has a control character or several lines", action),
			Hint:    "write one line of text",
		}
	}
	return text, nil
}
