package main

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

func TestRequestLog(t *testing.T) {
	var l requestLog
	for _, part := range []string{"ready\nrequest 5.", "125 ms\nrequest 12.000 ms\nstopped by SIGTERM\nrequ", "est 7.5 ms\n", "request x ms\n"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("wrote %d of %d bytes: %v", n, len(part), err)
		}
	}
	if got, want := l.take(), []float64{5.125, 12, 7.5}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := l.take(); got != nil {
		t.Errorf("taken twice: %v", got)
	}
	for i := range 1000 {
		fmt.Fprintf(&l, "request %d ms\n", 999-i)
	}
	if p50, p99 := percentiles(l.take()); p50 != 500 || p99 != 990 {
		t.Errorf("of 0 to 999 half take %v, and one in a hundred %v", p50, p99)
	}
	if p50, _ := percentiles(nil); !math.IsNaN(p50) {
		t.Errorf("of none half take %v", p50)
	}
}
