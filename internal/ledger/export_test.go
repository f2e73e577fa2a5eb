package ledger

import "encoding/json"

// OlderLine is a line as a version without a chain wrote it.
func OlderLine(value string) []byte {
	line, err := encode(json.RawMessage(value))
	if err != nil {
		panic(err)
	}
	return line
}
