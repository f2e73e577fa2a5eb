package api

import (
	"encoding/json"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestThousandths(t *testing.T) {
	for n, want := range map[Thousandths]string{
		0: "0", 1: "0.001", 10: "0.01", -10: "-0.01", 1000: "1", 100000: "100", 1234567: "1234.567", -1500: "-1.5", math.MinInt64: "-9223372036854775.808",
	} {
		if got := n.String(); got != want {
			t.Errorf("%d is %s, want %s", int64(n), got, want)
		}
	}
	if got := Thousandths(-1500).Fixed(); got != "-1.500" {
		t.Errorf("got %s", got)
	}
	for _, bad := range []string{`"1"`, "1.0001", "1e3", "null", "--1"} {
		if err := json.Unmarshal([]byte(bad), new(Thousandths)); err == nil && bad != "null" {
			t.Errorf("%s was read", bad)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n, back := Thousandths(rapid.Int64().Draw(t, "n")), Thousandths(0)
		b, err := json.Marshal(n)
		if err != nil || json.Unmarshal(b, &back) != nil || back != n {
			t.Fatalf("%d was read back as %d from %s: %v", n, back, b, err)
		}
	})
}
