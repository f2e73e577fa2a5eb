package durable

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A file in parts has all of them, however many there are and however long they are, and the parts stay as they are.
func TestReplaceParts(t *testing.T) {
	many := make([][]byte, 3*mostParts+1)
	for i := range many {
		many[i] = fmt.Append(nil, i, ",")
	}
	for name, parts := range map[string][][]byte{
		"none":       nil,
		"empty ones": {nil, {}, nil},
		"one":        {[]byte("one")},
		"with empty": {nil, []byte("a"), {}, []byte("b"), nil},
		"many":       many,
		"long":       {bytes.Repeat([]byte("x"), 1<<20), []byte("y"), bytes.Repeat([]byte("z"), 1<<20)},
	} {
		path := filepath.Join(t.TempDir(), "record")
		before := slices.Clone(parts)
		want := bytes.Join(parts, nil)
		if err := ReplaceParts(path, parts, Options{Any: true, Temp: "record.new"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes were read and %d were to be written, %v", name, len(got), len(want), err)
		}
		if !slices.EqualFunc(parts, before, bytes.Equal) || !bytes.Equal(bytes.Join(parts, nil), want) {
			t.Errorf("%s: the parts were changed", name)
		}
	}
}

// The record of the leases is written several times for each lease.
func TestReplacePartsAllocatesLittle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	parts := [][]byte{[]byte("header\n"), []byte(strings.Repeat("x", 10_000)), []byte("end")}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const times = 100
	for range times {
		if err := ReplaceParts(path, parts, Options{Any: true, Temp: "record.new", Volatile: true}); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / times; n > 8<<10 {
		t.Errorf("a write allocates %d bytes", n)
	}
}
