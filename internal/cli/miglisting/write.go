package miglisting

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/internal/board"
)

// Name sets the names of a board that its listing does not have: as the driver reports it, and for the command line.
func Name(b *board.Board, name string) {
	if name != "" {
		b.Name = name
	}
	short := strings.ToLower(strings.TrimPrefix(b.Name, "NVIDIA "))
	b.Short = strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, short), "-.")
}

// YAML writes a board file.
func YAML(b *board.Board) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(
		"# Written by 'gpushare mig profiles --from'. As a file of " + board.Directory + " it is known like a built-in board.\n",
	)
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(b); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}
