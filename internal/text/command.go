package text

import (
	"fmt"
	"slices"
	"strings"
)

// maxKeptArguments is how many arguments of a command are kept: an empty one has no bytes, but a header in memory.
const maxKeptArguments = 128

// KeptCommand is how much of a command is kept and shown, in bytes. The process gets its whole command.
const KeptCommand = 1 << 10

// ShortCommand returns a copy of a command with at most that many bytes, counting one after each argument. What is cut ends
// with an ellipsis and the length of the whole.
func ShortCommand(argv []string, most int) []string {
	whole := 0
	for _, arg := range argv {
		whole += len(arg) + 1
	}
	if whole <= most && len(argv) <= maxKeptArguments {
		return slices.Clone(argv)
	}
	end := fmt.Sprintf("… (cut, %d bytes)", whole)
	left := most - len(end) - 1
	var short []string
	for _, arg := range argv[:min(len(argv), maxKeptArguments-1)] {
		if len(arg) >= left {
			end = UpTo(arg, left) + end
			break
		}
		short, left = append(short, strings.Clone(arg)), left-len(arg)-1 // A part of a string would keep the whole in memory.
	}
	return append(short, end)
}
