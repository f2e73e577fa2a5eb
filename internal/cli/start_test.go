package cli_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/cli"
)

// A command that is alone in its tree behaves as in the whole one.
func TestOneCommandIsBuilt(t *testing.T) {
	for _, args := range []string{"run --help", "lease --help", "lease stop --help", "gpu nonsense", "run --no-such-flag", "mig plan --hel", "status -h"} {
		alone := runOn(t.Context(), "/nowhere", "", strings.Fields(args)...)
		whole := runOn(
			t.Context(),
			"/nowhere",
			"",
			append([]string{"--json=false"}, strings.Fields(args)...)...) // The first word names no command.
		if alone != whole {
			t.Errorf("'gpushare %s' gives %+v, in the whole tree %+v", args, alone, whole)
		}
	}
}

func BenchmarkStartOfRun(b *testing.B) {
	for b.Loop() {
		if code := cli.Run(
			b.Context(), []string{"run"}, nil, cli.Stdio{In: strings.NewReader(""), Out: io.Discard, Err: new(bytes.Buffer)},
		); code != 2 {
			b.Fatal(code)
		}
	}
}

func BenchmarkWholeTree(b *testing.B) {
	for b.Loop() {
		cli.Root()
	}
}
