package mpstest

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
)

//go:embed commands.jsonl
var commands []byte

// Case is one command and its answers. The exit code is 0 in every branch, also for errors.
type Case struct {
	In     string  `json:"in"`
	Socket string  `json:"socket"` // "tenants": through a directory that has only the socket control; else with the privileged one
	Out    string  `json:"out"`    // in 535 and later, up to the next one that differs
	At550  *string `json:"550"`
	At580  *string `json:"580"`
	At595  *string `json:"595"`
}

// Tenants reports whether the command is sent through the tenants' directory.
func (c Case) Tenants() bool { return c.Socket == "tenants" }

// Want is the answer in a branch of the driver, for the user who runs this test.
func (c Case) Want(branch int) string {
	want := c.Out
	for _, later := range []struct {
		branch int
		out    *string
	}{{550, c.At550}, {580, c.At580}, {595, c.At595}} {
		if later.out != nil && branch >= later.branch {
			want = *later.out
		}
	}
	return strings.ReplaceAll(want, "{uid}", strconv.Itoa(os.Getuid()))
}

// Cases returns the table. Its commands are sent to one fresh control daemon, in order.
func Cases(tb testing.TB) []Case {
	tb.Helper()
	var out []Case
	for in := bufio.NewScanner(bytes.NewReader(commands)); in.Scan(); {
		var c Case
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			tb.Fatalf("case %d: %v", len(out)+1, err)
		}
		out = append(out, c)
	}
	if len(out) < 120 {
		tb.Fatalf("only %d cases were read", len(out))
	}
	return out
}
